"""Save models in the layout of the Hugging Face Hub, push them, and load them back.

Weights are stored as safetensors, and pickles are never opened. ``push``, and ``from_pretrained``
of a repository, need the package ``huggingface_hub``; folders need no package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topocaps.errors import BadInput, optional
from topocaps.io import (
    make_folder,
    read_json,
    read_weights,
    write_atomically,
    write_json,
    write_weights,
)
from topocaps.models.base import GenerativeModel, build
from topocaps.version import __version__

LIBRARY = "topocaps"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


@dataclass(frozen=True)
class About:
    """The contents of a model card, beside the settings of the model."""

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
    """Write config.json, model.safetensors and the model card README.md, and return the folder.

    Args:
        folder: created if it does not exist.
        about: contents of the card, or its text.
        repo_id: repository in the card's example of loading the model.
    """
    if model.config is None:
        raise BadInput(
            "networks of your own have no config to rebuild them from: share your code and the run "
            "folder"
        )
    folder = make_folder(Path(folder))
    about = About(about) if isinstance(about, str) else about
    config = {"library_name": LIBRARY, "library_version": __version__, "model": model.config}
    write_json(folder / CONFIG, config)
    write_weights(folder / WEIGHTS, model)
    write_atomically(folder / CARD, card(model, about, repo_id))
    return folder


def from_pretrained(
    source: str | Path, revision: str | None = None, **options: Any
) -> GenerativeModel:
    """Load a model from a folder, or from a repository on the Hub ("owner/name").

    Args:
        revision: branch, tag or commit of the repository.
        options: those of ``huggingface_hub.snapshot_download``, such as ``token``, ``cache_dir``
            and ``local_files_only``.
    """
    folder = Path(source)
    if folder.is_dir():
        if revision is not None:
            raise BadInput(
                f"{source} is a folder, which has no revision {revision!r}: leave out revision"
            )
    else:
        folder = _downloaded(str(source), revision, options)
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("library_name") != LIBRARY:
        raise BadInput(
            f"{folder / CONFIG} is not the config of a {LIBRARY} model: choose a folder or "
            "repository that save_pretrained or push wrote"
        )
    model = build(config.get("model", {}))
    read_weights(folder / WEIGHTS, model)
    return model.eval()


def push(
    model: GenerativeModel,
    repo_id: str,
    about: About | str = About(),  # noqa: B008 (frozen)
    *,
    private: bool = False,
    revision: str | None = None,
    message: str = f"{LIBRARY} {__version__}",
    **options: Any,
) -> str:
    """Push a model to a repository on the Hub, and return the URL of the commit.

    Pushing needs a token, or a login by ``hf auth login``.

    Args:
        repo_id: repository ("owner/name"), created if it does not exist.
        about: contents of the model card, or its text.
        private: whether a new repository is private.
        revision: existing branch to push to.
        message: message of the commit.
        options: those of ``huggingface_hub.ModelHubMixin.push_to_hub``, such as ``token`` and
            ``create_pr``.
    """
    mixin: Any = _huggingface_hub().ModelHubMixin

    class Pushed(mixin):
        def _save_pretrained(self, save_directory: Path) -> None:
            save_pretrained(model, save_directory, about, repo_id)

    try:
        url = Pushed().push_to_hub(
            repo_id, private=private, branch=revision, commit_message=message, **options
        )
    except BadInput:  # from save_pretrained
        raise
    except Exception as error:  # the Hub's errors, and those of its HTTP client
        raise BadInput(f"cannot push to {repo_id}: {_first_line(error)}") from error
    return str(url)


def card(model: GenerativeModel, about: About, repo_id: str) -> str:
    """Return the text of README.md: metadata for the Hub, and how to load the model."""
    assert model.config is not None
    kind = str(model.config["kind"])
    metadata: dict[str, Any] = {
        "library_name": LIBRARY,
        "license": about.license,
        "tags": [LIBRARY, kind.lower(), *about.tags],
        "datasets": list(about.datasets),
        "metrics": list(about.metrics),
    }
    # values are JSON, which is also YAML
    lines = [
        f"{key}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in metadata.items()
        if value
    ]
    parts = [
        "\n".join(["---", *lines, "---"]),
        f"# {about.title or kind}",
        about.text,
        f"A `{kind}` of {LIBRARY} {__version__}.",
        f"```python\nfrom {__name__} import from_pretrained\n\n"
        f'model = from_pretrained("{repo_id}")  # or this folder\n```',
    ]
    if about.metrics:
        rows = [f"| {name} | {value:.6g} |" for name, value in about.metrics.items()]
        parts.append("\n".join(["| metric | value |", "|---|---|", *rows]))
    settings = json.dumps(model.config, indent=2)
    parts.append(f"```json\n{settings}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def _downloaded(repo_id: str, revision: str | None, options: Mapping[str, Any]) -> Path:
    """Download a repository, and return its folder in the cache of ``huggingface_hub``."""
    if repo_id.count("/") != 1 or repo_id.startswith((".", "/", "~")):
        raise BadInput(f"{repo_id} is neither a folder nor a repository (owner/name)")
    download = _huggingface_hub().snapshot_download
    try:
        return Path(
            download(repo_id, revision=revision, allow_patterns=[CONFIG, WEIGHTS], **options)
        )
    except Exception as error:  # the Hub's errors, and those of its HTTP client
        raise BadInput(
            f"{repo_id} is no folder, and cannot be downloaded from the Hub: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _huggingface_hub() -> Any:
    needs = "the Hub needs the package huggingface_hub"
    return optional("huggingface_hub", needs, "'topocaps[hub]'")
