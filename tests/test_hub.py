"""Models in the layout of the Hub: saving, loading, pushing, and refused folders."""

import json
import pickle
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import topocaps as tc
from topocaps.integrations.hub import About, from_pretrained, push, save_pretrained

TOPOGRAPHY = tc.Topography(2, (5,), (3,), window=3)


def tvae():
    return tc.TopographicVAE.mlp(
        frame_shape=(1, 4, 4), topography=TOPOGRAPHY, hidden=(9,), mu=-5.0, centred=True
    )


MODELS = {
    "TopographicVAE": tvae,
    "VAE": lambda: tc.VAE.mlp(frame_shape=(1, 4, 4), topography=TOPOGRAPHY, hidden=(9,)),
    "PartWhole": lambda: tc.PartWhole((1, 28, 28)),
}


class FakeHub:
    """The part of ``huggingface_hub`` that this library calls, with folders as repositories."""

    def __init__(self, root):
        self.root, self.calls, self.refusal = root, [], None
        outer = self

        class ModelHubMixin:
            def push_to_hub(self, repo_id, *, private, branch, commit_message, **options):
                if outer.refusal is not None:
                    raise outer.refusal
                outer.calls.append(("push", repo_id, private, branch, commit_message, options))
                self._save_pretrained(outer.root / repo_id)
                return f"https://hub/{repo_id}/commit/1"

        self.ModelHubMixin = ModelHubMixin

    def snapshot_download(self, repo_id, *, revision, allow_patterns, **options):
        self.calls.append(("download", repo_id, revision, allow_patterns, options))
        if not (self.root / repo_id).exists():
            raise OSError(f"404: {repo_id}\nand a long story")
        return str(self.root / repo_id)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_model_is_loaded_unchanged(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # offline, without the package
    model = MODELS[kind]()
    folder = save_pretrained(model, tmp_path / "model")
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "model.safetensors", "README.md"
    }  # fmt: skip
    loaded = from_pretrained(folder)
    assert type(loaded) is type(model) and not loaded.training and loaded.config == model.config
    again = loaded.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(again[name], value), name
    assert load_file(folder / "model.safetensors").keys() == again.keys()


def test_a_card_holds_the_text_and_the_metadata(tmp_path):
    about = About(
        'Digits that "turn": 7°', "Turning", license="mit", datasets=("mnist",),
        tags=("equivariance",), metrics={"log_px": -186.83, "capcorr": 1.0},
    )  # fmt: skip
    folder = save_pretrained(tvae(), tmp_path, about)
    _, matter, text = (folder / "README.md").read_text().split("---\n", 2)
    metadata = {
        key: json.loads(value)
        for key, value in (line.split(": ", 1) for line in matter.splitlines())
    }
    assert metadata == {
        "library_name": "topocaps",
        "license": "mit",
        "tags": ["topocaps", "topographicvae", "equivariance"],
        "datasets": ["mnist"],
        "metrics": ["log_px", "capcorr"],
    }
    assert "# Turning" in text and about.text in text and "| log_px | -186.83 |" in text
    config = json.loads((folder / "config.json").read_text())
    assert config["library_name"] == "topocaps" and config["library_version"] == tc.__version__


def test_a_pushed_model_is_loaded_unchanged(hub):
    model = tvae()
    url = push(model, "me/turning", "Digits that turn.", private=True, message="first", token="t")
    assert url == "https://hub/me/turning/commit/1"
    assert hub.calls == [("push", "me/turning", True, None, "first", {"token": "t"})]
    card = (hub.root / "me/turning/README.md").read_text()
    assert "Digits that turn." in card and 'from_pretrained("me/turning")' in card
    loaded = from_pretrained("me/turning", revision="v1", local_files_only=True)
    assert hub.calls[-1] == (
        "download", "me/turning", "v1", ["config.json", "model.safetensors"],
        {"local_files_only": True},
    )  # fmt: skip
    x = torch.rand(2, 4, 1, 4, 4)
    assert torch.equal(loaded.encode(x), model.encode(x))


def test_huggingface_hub_uploads_the_saved_files(tmp_path, monkeypatch):
    """The real package is used, with its two requests replaced."""
    package = pytest.importorskip("huggingface_hub")
    asked = []

    def create_repo(self, repo_id, **options):
        asked.append(options)
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, folder_path, **options):
        asked.append(options)
        shutil.copytree(folder_path, tmp_path / "uploaded")
        return "https://hub/commit/2"

    monkeypatch.setattr(package.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(package.HfApi, "upload_folder", upload_folder)
    model = tvae()
    assert push(model, "me/turning", revision="v1", message="first") == "https://hub/commit/2"
    assert asked[0] == {"private": False, "exist_ok": True}
    expected = {"repo_id": "me/turning", "revision": "v1", "commit_message": "first"}
    assert expected.items() <= asked[1].items()
    saved, uploaded = (
        save_pretrained(model, tmp_path / "a", "", "me/turning"),
        tmp_path / "uploaded",
    )
    assert {path.name for path in uploaded.iterdir()} == {path.name for path in saved.iterdir()}
    for path in saved.iterdir():
        assert (uploaded / path.name).read_bytes() == path.read_bytes()


def test_errors_of_the_hub_become_bad_input(hub):
    with pytest.raises(tc.BadInput, match=r"cannot be downloaded from the Hub: 404: me/nothing$"):
        from_pretrained("me/nothing")
    for wrong in ("nothing", "./a/b", "a/b/c", "/no/where"):
        with pytest.raises(tc.BadInput, match="neither a folder nor a repository"):
            from_pretrained(wrong)

    for refusal in (OSError("401: who are you?"), Exception("401: nobody")):
        hub.refusal = refusal
        with pytest.raises(tc.BadInput, match="cannot push to me/it: 401"):
            push(tvae(), "me/it")
    hub.refusal, own = None, tvae()
    own.config = None
    with pytest.raises(tc.BadInput, match=r"^networks of your own have no config"):
        push(own, "me/it")


def test_folders_without_a_valid_model_are_refused(tmp_path):
    folder = save_pretrained(tvae(), tmp_path / "model")
    with pytest.raises(tc.BadInput, match="has no revision"):
        from_pretrained(folder, revision="v1")
    whole = json.loads((folder / "config.json").read_text())
    model = whole["model"]
    for wrong, words in (
        ({**whole, "library_name": "diffusers"}, "not the config of a topocaps model"),
        ([], "not the config of a topocaps model"),
        ({**whole, "model": {**model, "colour": "red"}}, "colour"),
        ({**whole, "model": {"frame_shape": [1, 4, 4]}}, "kind"),
        ({**whole, "model": {**model, "kind": "Oracle"}}, "knows no model"),
        ({**whole, "model": {**model, "hidden": [8]}}, "does not fit the model"),
    ):
        (folder / "config.json").write_text(json.dumps(wrong))
        with pytest.raises(tc.BadInput, match=words):
            from_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(tc.BadInput, match="cannot read"):
        from_pretrained(folder)
    own = tvae()
    own.config = None
    with pytest.raises(tc.BadInput, match="no config"):
        save_pretrained(own, tmp_path / "own")


class Trap:
    def __reduce__(self):
        return (print, ("sprung",))


def test_a_pickle_is_never_opened(tmp_path, capsys):
    folder = save_pretrained(tvae(), tmp_path)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    (folder / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(tc.BadInput, match="does not fit the model"):
        from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(tc.BadInput, match=r"model\.safetensors"):
        from_pretrained(folder)
    assert "sprung" not in capsys.readouterr().out


def test_an_error_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for ask in (lambda: from_pretrained("me/it"), lambda: push(tvae(), "me/it")):
        with pytest.raises(tc.BadInput, match=r"pip install 'topocaps\[hub\]'"):
            ask()
