import os
import subprocess

import pytest

from turngap.core.secrets import REMOVED, text_without_secrets, without_secrets
from turngap.store.documents import git_commit, this_machine

SECRET = "hunter2"


@pytest.mark.parametrize(
    "key",
    [
        "api_key",
        "apiKey",
        "OPENAI-API-KEY",
        "Authorization",
        "hfToken",
        "password",
        "client_secret",
    ],
)
def test_secret_keys_are_emptied_at_any_depth(key):
    cleaned = without_secrets({"a": [{"b": {key: SECRET}}], "t": ({key: [SECRET]},)})
    assert SECRET not in repr(cleaned)
    assert REMOVED in repr(cleaned)


def test_settings_are_kept():
    settings = {
        "first_token_ms": 120,
        "max_tokens": 64,
        "keyword": "latte",
        "token": None,
        "verify_auth": True,
        "url": "ws://127.0.0.1:8765/ws?model=a b",
    }
    assert without_secrets(settings) == settings


def test_numeric_passwords_are_secrets_too():
    assert without_secrets({"password": 1234}) == {"password": REMOVED}


def test_urls_in_prose_lose_their_credentials():
    text = "cannot reach wss://me:hunter2@host/x?token=hunter2&voice=f3, try again"
    cleaned = text_without_secrets(text)
    assert SECRET not in cleaned
    assert "host/x" in cleaned
    assert "voice=f3" in cleaned


def test_this_machine_is_the_same_twice_and_names_no_host():
    machine = this_machine()
    assert machine == this_machine()
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert machine.cpu
    assert os.uname().nodename not in machine.model_dump_json()


def test_another_cpu_is_another_machine(monkeypatch):
    here = this_machine().fingerprint
    monkeypatch.setattr("turngap.store.documents._cpu_model", lambda: "another")
    assert this_machine().fingerprint != here


def test_git_commit_of_a_checkout_and_of_none(tmp_path, monkeypatch):
    assert git_commit(tmp_path) is None
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for command in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    commit = git_commit(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "f").write_text("1")
    subprocess.run(["git", "add", "f"], cwd=tmp_path, check=True)
    assert git_commit(tmp_path) == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert git_commit(tmp_path) is None
