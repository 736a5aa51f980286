"""From a spec string to a subject. Only weights are read from files: nothing in a checkpoint is ever executed.

| spec | what it is |
| --- | --- |
| `pkg.module:factory`, `path/to/file.py:factory` | your code; returns an `nn.Module` or a `Subject` |
| `demo:majority`, `demo:parity` | small trained Transformers that ship with the package |
| a directory | a local Hugging Face model (`config.json`), offline |
| `*.gguf` | a GGUF language model, dequantised |
| `*.pt2` | a `torch.export` program |
| `hf:NAME` | a model of the Hugging Face Hub: the only spec that goes online |
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from modelprops import pretrained
from modelprops.checkpoints import STATE_DICT_SUFFIXES, load_weights, state_dict_of
from modelprops.domains import BooleanCube, Domain
from modelprops.errors import ArgumentError, LoadError, ModelpropsError
from modelprops.exported import load_exported
from modelprops.preserve import random_state_kept
from modelprops.readouts import Readout, Spec, resolve
from modelprops.specs import parse_domain, parse_readout
from modelprops.subject import Subject

FORMS = (
    '"pkg.module:factory", "path/to/file.py:factory", a Hugging Face directory, a .gguf or .pt2 file, "demo:majority", '
    '"demo:parity" or "hf:NAME"'
)


@dataclass(frozen=True)
class _Found:
    """A module (or a Subject's callable) with what is known about its inputs and outputs."""

    module: Any
    name: str
    domain: Domain | None = None
    readout: Spec | Readout = None
    claims: tuple[str, ...] = ()
    subject: Subject | None = None


def load(
    spec: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    domain: Domain | str | None = None,
    readout: Spec | Readout | str = None,
    **subject_options: Any,
) -> Subject:
    """Return the subject that `spec` names; see the table of this module for the forms.

    `checkpoint`: a `.safetensors`, `.pt`, `.pth` or `.bin` state dict for the module of a factory, demo or Hugging Face
    directory; every key must fit (tied weights may be left out; a `module.` prefix and a `state_dict` wrapper are taken
    off). A Hugging Face directory or GGUF file gives its weights to a factory's module, and takes the place of a spec
    of these kinds. `domain` and `readout` may be text (`"BooleanCube(12)"`, `"logit 3"`); they replace the defaults,
    which are: a factory's own Subject; BooleanCube(12) and `"sign"` for a demo; for language models 32 uniform ordinary
    tokens and the next-token probability (causal) or the pooled embedding (encoder). `subject_options` are those of
    `Subject`.

    The global random state and `sys.path` are left as found. Raises `LoadError` with the reason,
    `UnsafeCheckpointError` for a file that would run code (before it runs), `ArgumentError` where no domain is known.
    """
    if not isinstance(spec, (str, os.PathLike)):
        raise ArgumentError(
            f"spec={spec!r} is a {type(spec).__name__}; give {FORMS}, or build mp.Subject(module, domain)"
        )
    dtype = subject_options.get("dtype")
    with random_state_kept():
        found = _found(os.fspath(spec), None if checkpoint is None else Path(checkpoint).expanduser(), dtype)
    given_domain = parse_domain(domain) if isinstance(domain, str) else domain
    given_readout = resolve(parse_readout(readout), None) if isinstance(readout, str) else readout
    return _subject(found, given_domain, given_readout, subject_options)


def _subject(found: _Found, domain: Domain | None, readout: Spec | Readout, options: dict[str, Any]) -> Subject:
    own = found.subject
    if own is not None:
        if domain is None and readout is None and not options:
            return own
        options = {"batch_size": own.batch_size, "claims": own.claims, "name": own.name} | options
    domain = found.domain if domain is None else domain
    if domain is None:
        raise ArgumentError(
            f"nothing says what the inputs of {found.name} are; give domain= (--modelprops-domain), for example "
            '"BooleanCube(12)" or "Tokens(50257, 64)", or let the factory return a Subject'
        )
    options = {"name": found.name, "claims": found.claims} | options
    return Subject(found.module, domain, found.readout if readout is None else readout, **options)


def _found(spec: str, checkpoint: Path | None, dtype: Any) -> _Found:
    path = Path(spec).expanduser()
    if spec.startswith("demo:"):
        return _with_weights(_demo(spec), checkpoint)
    if spec.startswith("hf:"):
        found = _pretrained(pretrained.download(spec.removeprefix("hf:")), checkpoint, dtype)
        return replace(found, name=found.name if checkpoint else spec.removeprefix("hf:"))
    if path.is_dir() or path.suffix == ".gguf":
        return _pretrained(path, checkpoint, dtype)
    if path.suffix == ".pt2":
        if checkpoint is not None:
            raise LoadError(f"{spec!r} carries its own weights; leave out checkpoint=, or give a factory beside it")
        return _Found(load_exported(path), path.stem)
    if path.suffix in STATE_DICT_SUFFIXES:
        raise LoadError(
            f"{spec!r} is a state dict, which does not say what architecture it has; give a factory as the model "
            '("pkg.module:factory") and this file as checkpoint='
        )
    if ":" not in spec:
        raise LoadError(f"model {spec!r} is no existing path and of no known form; give {FORMS}")
    return _with_weights(_made(spec), checkpoint)


def _demo(spec: str) -> _Found:
    from modelprops import demo

    module, claims = demo.load(spec.removeprefix("demo:"))
    return _Found(module, spec, BooleanCube(demo.LENGTH, encoding="bits"), "sign", claims)


def _pretrained(path: Path, checkpoint: Path | None, dtype: Any) -> _Found:
    if checkpoint is not None and (checkpoint.is_dir() or checkpoint.suffix == ".gguf"):
        path, checkpoint = checkpoint, None
    *_, parent, name = path.resolve().parts
    if name == "model":
        name = f"{parent}/{name}"
    if path.suffix == ".gguf":
        if checkpoint is not None:
            raise LoadError(f"{path} carries its own weights; to load {checkpoint} give its Hugging Face directory")
        model, directory = pretrained.load_gguf(path, dtype), None
        name = path.stem
    else:
        model, directory = pretrained.load_directory(path, dtype, checkpoint), path
    name = name if checkpoint is None else f"{name} @ {checkpoint.name}"
    domain, readout = pretrained.default_domain(model, directory), pretrained.default_readout(model)
    return _Found(model, name, domain, readout)


def _with_weights(found: _Found, checkpoint: Path | None) -> _Found:
    if checkpoint is None:
        return found
    if not isinstance(found.module, torch.nn.Module):
        raise LoadError(
            f"{found.name} is a plain callable, which has no weights; leave out checkpoint={str(checkpoint)!r}"
        )
    if checkpoint.is_dir():
        weights = pretrained.load_directory(checkpoint).state_dict()
    elif checkpoint.suffix == ".gguf":
        weights = pretrained.load_gguf(checkpoint).state_dict()
    else:
        weights = state_dict_of(checkpoint)
    load_weights(found.module, weights, str(checkpoint))
    if found.subject is not None:
        found.subject.name = f"{found.subject.name} @ {checkpoint.name}"
    return replace(found, name=f"{found.name} @ {checkpoint.name}")


def _made(spec: str) -> _Found:
    """Call a factory, with the working directory importable meanwhile."""
    where, _, attribute = spec.rpartition(":")
    with _importable(Path.cwd()):
        made = _imported(where, attribute, spec)
        if not isinstance(made, (torch.nn.Module, Subject)):
            if not callable(made):
                raise LoadError(f"{spec!r} is a {type(made).__name__}; name a function that returns an nn.Module")
            made = _guarded(made, f"the factory {spec!r}")
    if isinstance(made, Subject):
        return _Found(made._callable, made.name, made.domain, made.readout, made.claims, made)
    if not isinstance(made, torch.nn.Module):
        raise LoadError(f"the factory {spec!r} returned a {type(made).__name__}; return an nn.Module or a mp.Subject")
    return _Found(made, spec)


def _imported(where: str, attribute: str, spec: str) -> Any:
    if not where or not attribute:
        raise LoadError(f"model {spec!r} lacks a part; write {FORMS}")
    if where.endswith(".py"):
        value = _from_file(Path(where).expanduser(), spec)
    else:
        top = where.partition(".")[0]
        if not top.isidentifier() or (top not in sys.modules and importlib.util.find_spec(top) is None):
            raise LoadError(
                f"there is no module {where!r} (of {spec!r}) on sys.path or in {Path.cwd()}; check its name"
            )
        value = _guarded(lambda: importlib.import_module(where), f"importing {where!r}")
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise LoadError(f"{where!r} has no {attribute!r}; name a function in it that returns an nn.Module")
        value = getattr(value, part)
    return value


def _from_file(path: Path, spec: str) -> Any:
    if not path.is_file():
        raise LoadError(f"there is no file {str(path)!r} (of {spec!r}); the path is taken from {Path.cwd()}")
    name = f"modelprops_model_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path.resolve())
    assert found is not None
    loader = found.loader
    assert loader is not None
    module = importlib.util.module_from_spec(found)
    previous = sys.modules.get(name)
    sys.modules[name] = module
    try:
        with _importable(path.resolve().parent):
            _guarded(lambda: loader.exec_module(module), f"running {str(path)!r}")
    except BaseException:
        sys.modules.pop(name)
        if previous is not None:
            sys.modules[name] = previous
        raise
    return module


def _guarded(call: Callable[[], Any], what: str) -> Any:
    try:
        return call()
    except ModelpropsError:
        raise
    except (Exception, SystemExit) as error:
        raise LoadError(
            f"{what} raised {type(error).__name__}: {error}; mend it, or run it on its own to see where"
        ) from error


@contextmanager
def _importable(directory: Path) -> Iterator[None]:
    entry = str(directory)
    if entry in sys.path:
        yield
        return
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)
