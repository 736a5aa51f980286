"""Hugging Face directories and GGUF files: offline, no remote code, no pickle that runs code, silent.

The default domain draws uniform ordinary tokens: special ids are excluded, and an encoder that puts a CLS token first
and a SEP token last finds them there, frozen.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from modelprops.checkpoints import load_weights, state_dict_of, unpickled
from modelprops.domains import Tokens
from modelprops.errors import LoadError, UnsafeCheckpointError
from modelprops.readouts import Spec

LENGTH = 32
SPECIAL = ("pad", "bos", "eos", "cls", "sep", "mask", "unk")
EXTRA = 'pip install "modelprops[transformers]"'


def load_directory(directory: Path, dtype: torch.dtype | str | None = None, weights: Path | None = None) -> Any:
    """Return the model of a directory with `config.json`: the class that `architectures[0]` names.

    With `weights` the directory gives the architecture alone and the state dict is read from that file. Raises
    `LoadError` where configuration, weights or class are missing, damaged or do not fit.
    """
    if not (directory / "config.json").is_file():
        raise LoadError(f"{str(directory)!r} has no config.json; give a directory that save_pretrained wrote")
    transformers = _transformers()
    with silent(transformers), _explained(str(directory)):
        config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    if getattr(config, "is_encoder_decoder", False):
        raise LoadError(f"{str(directory)!r} is an encoder-decoder, which takes two inputs; wrap it in a factory")
    kind = _class_of(transformers, config, directory)
    if weights is not None:
        with silent(transformers), _explained(str(directory)):
            model = kind(config) if not kind.__name__.startswith("Auto") else kind.from_config(config)
        load_weights(model, state_dict_of(weights), str(weights))
        return _ready(model if dtype is None else model.to(_dtype_of(dtype)))
    if not list(directory.glob("*.safetensors")):
        for pickle in sorted(directory.glob("*.bin")):
            unpickled(pickle, str(pickle))
    with silent(transformers), _explained(str(directory)):
        model, report = kind.from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **({} if dtype is None else {"dtype": dtype}),
        )
    _refuse_misfit(report, f"{str(directory)!r} ({kind.__name__})")
    return _ready(model)


def load_gguf(path: Path, dtype: torch.dtype | str | None = None) -> Any:
    """Return the causal language model of a GGUF file, its weights dequantised to `dtype` (float32 by default)."""
    if not path.is_file():
        raise LoadError(f"{str(path)!r} is not a file; give a path that exists")
    transformers = _transformers("gguf", "accelerate")
    with silent(transformers), _explained(str(path)):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent,
            gguf_file=path.name,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            dtype=torch.float32 if dtype is None else dtype,
        )
    _refuse_misfit(report, repr(str(path)))
    return _ready(model)


def download(name: str) -> Path:
    """Fetch a model of the Hugging Face Hub (safetensors where it has them), the only step that goes online."""
    _transformers()
    from huggingface_hub import snapshot_download

    with _explained(f"hf:{name}"):
        for weights in ("*.safetensors", "*.bin"):
            wanted = ["*.json", "*.txt", weights]
            directory = Path(
                snapshot_download(name, allow_patterns=wanted, ignore_patterns=["*/*"], local_files_only=False)
            )
            if list(directory.glob(weights)):
                return directory
    raise LoadError(f"hf:{name} holds neither safetensors nor .bin weights; name another model")


def default_domain(model: Any, directory: Path | None = None) -> Tokens | None:
    """Uniform ordinary tokens of length 32 (or the model's greatest), or None for a model without a vocabulary."""
    text = model.config.get_text_config()
    vocab = getattr(text, "vocab_size", None)
    if not isinstance(vocab, int):
        return None
    length = min(LENGTH, getattr(text, "max_position_embeddings", None) or LENGTH)
    named, special = _special_ids(text, directory)
    ids = {token for token in {*named.values(), *special} if 0 <= token < vocab}
    frozen: dict[int, int] = {}
    if not _is_causal(model) and length > 2:
        places = {"cls": 0, "sep": length - 1}
        frozen = {place: named[name] for name, place in places.items() if named.get(name) in ids}
    return Tokens(vocab, length, frozen=frozen, exclude=sorted(ids))


def default_readout(model: Any) -> Spec:
    """The probability of one frozen next token, class probabilities, or the pooled embedding, by the architecture."""
    name = type(model).__name__
    if _is_causal(model):
        return ("next-token-probability", "frozen")
    if name.endswith("ForSequenceClassification"):
        return "probability"
    return None if "For" in name else "embedding"


@contextmanager
def silent(transformers: Any) -> Iterator[None]:
    """Turn off bars, warnings and log lines of transformers, and put its settings back.

    The streams are held as well: its GGUF reader draws a bar that no switch turns off.
    """
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _transformers(*more: str) -> Any:
    from importlib.util import find_spec

    absent = [name for name in ("transformers", *more) if find_spec(name) is None]
    if absent:
        raise LoadError(f"this model needs {', '.join(absent)}, which is not installed; run {EXTRA}")
    import transformers

    return transformers


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except (LoadError, UnsafeCheckpointError):
        raise
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        remedy = "check that its files are whole and that this transformers knows the architecture"
        if "remote code" in str(error) or "custom code" in str(error):
            reason, remedy = "it brings its own Python code, which is never run", "load it in a factory of your own"
        raise LoadError(f"{what} could not be loaded: {reason.strip().rstrip('.')}; {remedy}") from None


def _class_of(transformers: Any, config: Any, directory: Path) -> Any:
    name = _architecture(config)
    if not name:
        return transformers.AutoModel
    kind = getattr(transformers, name, None)
    if kind is None or not hasattr(kind, "from_pretrained"):
        raise LoadError(
            f"{str(directory)!r} names the architecture {name!r}, which transformers {transformers.__version__} does "
            "not have; install one that does, or load the model in a factory of your own"
        )
    return kind


def _ready(model: Any) -> Any:
    """One output per call: no key-value cache."""
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    return model.eval()


def _refuse_misfit(report: Mapping[str, Any], what: str) -> None:
    kinds = (("missing", "missing_keys"), ("unexpected", "unexpected_keys"), ("of another shape", "mismatched_keys"))
    faults = []
    for kind, key in kinds:
        names = sorted(entry if isinstance(entry, str) else str(entry[0]) for entry in report.get(key) or ())
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            faults.append(f"{kind}: {', '.join(names[:8])}{more}")
    if faults:
        raise LoadError(f"the weights of {what} do not fit ({'; '.join(faults)}); save the model again with its class")


def _architecture(config: Any) -> str:
    return str((getattr(config, "architectures", None) or [""])[0])


def _is_causal(model: Any) -> bool:
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def _dtype_of(dtype: torch.dtype | str) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        raise LoadError(f'dtype={dtype!r} is unknown; use "float32", "float64", "bfloat16" or "float16"')
    return found


def _special_ids(config: Any, directory: Path | None) -> tuple[dict[str, int], set[int]]:
    """Ids by role (`cls`, `sep`, ...) and all that the tokenizer marks special, from the files that say so."""
    named: dict[str, int] = {}
    for role in SPECIAL:
        found = getattr(config, f"{role}_token_id", None)
        if isinstance(found, list):
            found = found[0] if found else None
        if isinstance(found, int):
            named[role] = found
    if directory is None:
        return named, set()
    ids = _token_ids(directory)
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        content = _json(directory / file)
        for role in SPECIAL:
            token = content.get(f"{role}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) and token in ids:
                named.setdefault(role, ids[token])
    return named, set(ids.values())


def _token_ids(directory: Path) -> dict[str, int]:
    """Special tokens with their ids."""
    added = _json(directory / "tokenizer.json").get("added_tokens") or [
        {**entry, "id": int(key)}
        for key, entry in (_json(directory / "tokenizer_config.json").get("added_tokens_decoder") or {}).items()
    ]
    if added:
        return {entry["content"]: entry["id"] for entry in added if entry.get("special")}
    try:
        words = (directory / "vocab.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return {}
    return {word: place for place, word in enumerate(words) if word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
