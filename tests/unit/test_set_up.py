"""`make setup`: uv is installed by its pin, and with the settings of the machine's pip."""

from __future__ import annotations

from pathlib import Path

import pytest

import set_up


def test_pin_of_uv_is_its_version_and_digests_alone() -> None:
    pin = set_up.pin_of("uv", set_up.PINS.read_text("utf-8")).splitlines()
    assert pin[0].startswith("uv==")
    assert len(pin) > 5
    assert all(line.strip().startswith("--hash=sha256:") for line in pin[1:])


def test_pin_of_a_package_without_pin_names_the_command() -> None:
    with pytest.raises(set_up.SetupError, match="has no nothing: run make pins"):
        set_up.pin_of("nothing", "uv==1 --hash=sha256:0\n")


def test_uv_environment_has_what_pip_is_told_in_files_and_variables() -> None:
    settings = r"""
:env:.disable-pip-version-check='1'
:env:.find-links='/srv/wheels https://one.example/wheels'
global.cert='/etc/ssl/own.pem'
global.extra-index-url='\nhttps://two.example/simple\nhttps://three.example/simple'
global.index-url='https://one.example/simple'
install.trusted-host='one.example'
user.timeout='60'
"""
    assert set_up.uv_environment(settings) == {
        "UV_FIND_LINKS": "/srv/wheels,https://one.example/wheels",
        "SSL_CERT_FILE": "/etc/ssl/own.pem",
        "UV_INDEX": "https://two.example/simple https://three.example/simple",
        "UV_DEFAULT_INDEX": "https://one.example/simple",
        "UV_INSECURE_HOST": "one.example",
        "UV_HTTP_TIMEOUT": "60",
    }


def test_installer_without_uv_is_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a platform for which uv has no wheel."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\ncase "$*" in *uv.txt*) exit 1;; esac\necho "$@" >> "$(dirname "$0")/../calls"\n')
    python.chmod(0o755)
    monkeypatch.setattr(set_up, "VENV", tmp_path)
    monkeypatch.setattr(set_up, "PYTHON", python)
    monkeypatch.setattr(set_up, "LOG", tmp_path / "install.log")
    set_up.Installer().install("--no-deps", "one")
    assert (tmp_path / "calls").read_text().split()[:3] == ["-m", "pip", "install"]


def test_installer_that_fails_says_why_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\ncase \"$*\" in *uv.txt*) exit 1;; esac\necho 'ERROR: no space left'; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(set_up, "VENV", tmp_path)
    monkeypatch.setattr(set_up, "PYTHON", python)
    monkeypatch.setattr(set_up, "LOG", tmp_path / "install.log")
    with pytest.raises(set_up.SetupError, match=r"^no space left: check the network .*install\.log$"):
        set_up.Installer().install("one")
