"""Models in the layout of the Hugging Face Hub: saved, pushed, and taken back. Never a pickle."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from topocaps.building import build
from topocaps.errors import BadInput
from topocaps.files import make_folder, read_json, write_atomically, write_json
from topocaps.generative import GenerativeModel
from topocaps.version import __version__

LIBRARY = "topocaps"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


@dataclass(frozen=True)
class About:
    """What a model card says beside what the model itself does."""

    text: str = ""
    title: str = ""
    license: str | None = None
    datasets: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


def save_pretrained(
    model: GenerativeModel,
    folder: str | Path,
    about: About | str = About(),  # noqa: B008 (frozen)
    repo_id: str = "owner/name",
) -> Path:
    """Write config.json, model.safetensors and README.md, the model card, into ``folder``.

    ``repo_id`` is where the card says that it can be had.
    """
    if model.config is None:
        raise BadInput("networks of your own have no config that others could rebuild them from")
    folder = make_folder(Path(folder))
    about = About(about) if isinstance(about, str) else about
    told = {"library_name": LIBRARY, "library_version": __version__, "model": model.config}
    # clones: networks that share a module share its memory, which the format refuses
    tensors = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in model.state_dict().items()
    }
    write_json(folder / CONFIG, told)
    write_atomically(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    write_atomically(folder / CARD, card(model, about, repo_id))
    return folder


def from_pretrained(source: str | Path, revision: str | None = None) -> GenerativeModel:
    """The model in a folder, or of a repository on the Hub ("owner/name") at a ``revision``."""
    folder = Path(source)
    if folder.is_dir():
        if revision is not None:
            raise BadInput(f"{source} is a folder, which has no revision {revision!r}")
    else:
        folder = _download(str(source), revision)
    told = read_json(folder / CONFIG)
    if not isinstance(told, dict) or told.get("library_name") != LIBRARY:
        raise BadInput(f"{folder / CONFIG} is not of a {LIBRARY} model")
    try:
        model = build(told["model"])
    except (KeyError, TypeError) as error:
        made = told.get("library_version")
        raise BadInput(
            f"{folder / CONFIG}, made by {LIBRARY} {made}, is not what {__version__} builds: "
            f"{error}"
        ) from error
    try:
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{folder / WEIGHTS} does not fit the model: {reason}") from error
    return model.eval()


def push(
    model: GenerativeModel,
    repo_id: str,
    about: About | str = About(),  # noqa: B008 (frozen)
    *,
    private: bool = False,
    revision: str | None = None,
    message: str = f"{LIBRARY} {__version__}",
) -> str:
    """Put a model into a repository on the Hub, made where there is none; the commit's address.

    ``revision`` is a branch that is there. Who may write is what ``hf auth login`` has settled.
    """
    hub = _hub()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, about, repo_id)
        try:
            hub.create_repo(repo_id, private=private, exist_ok=True)
            commit = hub.upload_folder(
                repo_id=repo_id, folder_path=folder, commit_message=message, revision=revision
            )
        except (OSError, ValueError) as error:
            raise BadInput(f"cannot push to {repo_id}: {_first_line(error)}") from error
    return str(commit.commit_url)


def card(model: GenerativeModel, about: About, repo_id: str) -> str:
    """The text of README.md: front matter that the Hub reads, and how to load the model."""
    assert model.config is not None
    kind = str(model.config["kind"])
    matter: dict[str, Any] = {
        "library_name": LIBRARY,
        "license": about.license,
        "tags": [LIBRARY, kind.lower(), *about.tags],
        "datasets": list(about.datasets),
        "metrics": list(about.metrics),
    }
    # JSON is YAML
    lines = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in matter.items() if value
    ]
    parts = [
        "\n".join(["---", *lines, "---"]),
        f"# {about.title or kind}",
        about.text,
        f"A `{kind}` of {LIBRARY} {__version__}.",
        f"```python\nfrom {LIBRARY}.hub import from_pretrained\n\n"
        f'model = from_pretrained("{repo_id}")  # or this folder\n```',
    ]
    if about.metrics:
        rows = [f"| {name} | {value:.6g} |" for name, value in about.metrics.items()]
        parts.append("\n".join(["| metric | value |", "|---|---|", *rows]))
    settings = json.dumps(model.config, indent=2)
    parts.append(f"```json\n{settings}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def _download(repo_id: str, revision: str | None) -> Path:
    """The files of a repository that matter, in the Hub's cache."""
    if repo_id.count("/") != 1 or repo_id.startswith((".", "/", "~")):
        raise BadInput(f"{repo_id} is neither a folder nor a repository (owner/name)")
    hub = _hub()
    try:
        found = hub.snapshot_download(repo_id, revision=revision, allow_patterns=[CONFIG, WEIGHTS])
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{repo_id} is no folder here, and cannot be had from the Hub: {_first_line(error)}"
        ) from error
    return Path(found)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise BadInput(
            "the Hub needs the package huggingface_hub: pip install 'topocaps[hub]'"
        ) from error
    return huggingface_hub
