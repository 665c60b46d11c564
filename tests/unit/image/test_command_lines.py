"""The command lines that make an image."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.image import build
from tools.image.build import Builder, ImageError, missing_programs
from tools.image.recipe import (
    Store,
    base_for,
    build_argv,
    digest_of,
    download_argv,
    pip_settings,
    push_argv,
)

STORE = Store(Path("/cache/layers"))


def test_a_digest_tells_parts_apart() -> None:
    assert digest_of("ab", "c") != digest_of("a", "bc")
    assert digest_of("a") == digest_of("a")


def test_a_base_is_named_by_its_whole_command() -> None:
    amd64, arm64 = base_for("amd64"), base_for("arm64")
    assert amd64.key != arm64.key
    assert amd64 == base_for("amd64")
    assert amd64.key in amd64.image


def test_a_base_keeps_licences_and_no_package_sources() -> None:
    argv = base_for("amd64").argv
    assert argv.index("--dpkgopt=path-exclude=/usr/share/doc/*") < argv.index(
        "--dpkgopt=path-include=/usr/share/doc/*/copyright"
    ), "dpkg takes the last rule that fits"
    (hook,) = (word for word in argv if word.startswith("--customize-hook="))
    assert '"$1"/etc/apt ' in hook
    assert not any("://" in word for word in argv)


def test_a_build_has_no_network_and_pulls_nothing() -> None:
    argv = build_argv(STORE, target="pdcluster", base="b:1", version="1.2", mounts={})
    assert argv[: argv.index("buildah")] == ["unshare", "--mount", "--net"]
    assert "--pull-never" in argv
    assert {"--build-arg=BASE=b:1", "--build-arg=VERSION=1.2", "--target=pdcluster"} <= {*argv}
    assert argv[argv.index("--root") + 1] == "/cache/layers/store"


def test_what_a_build_is_given_cannot_be_written() -> None:
    mounts = {Path("/w"): "/wheels", Path("/p"): "/etc/pip.conf"}
    argv = build_argv(STORE, target="pdcluster", base="b", version="1", mounts=mounts)
    volumes = [word for word in argv if word.startswith("--volume=")]
    assert volumes == ["--volume=/w:/wheels:ro", "--volume=/p:/etc/pip.conf:ro"]
    assert "no-index = true" in pip_settings()
    assert "find-links = /wheels" in pip_settings()


def test_an_archive_names_its_image() -> None:
    argv = push_argv(STORE, target="pdcluster-sim", archive=Path("/out/x.tar"))
    name = "docker.io/local/pdcluster-sim:dev"
    assert argv[-2:] == [name, f"docker-archive:/out/x.tar:{name}"]


def test_wheels_are_for_the_images_python_not_for_ours() -> None:
    argv = download_argv(["pip"], lock=Path("l.txt"), folder=Path("d"), machine="aarch64")
    assert argv[:2] == ["pip", "download"]
    assert {"--require-hashes", "--only-binary=:all:", "--python-version=3.11"} <= {*argv}
    platforms = [word for word in argv if word.startswith("--platform=")]
    assert "--platform=manylinux_2_28_aarch64" in platforms
    assert "--platform=manylinux2014_aarch64" in platforms
    assert not any("manylinux_2_37" in word for word in platforms), "Debian 12 has glibc 2.36"


def test_missing_programs_are_named_with_their_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = missing_programs()
    assert "missing: mmdebstrap, buildah" in said
    assert "apt-get install --no-install-recommends buildah mmdebstrap util-linux" in said
    for name in ("mmdebstrap", "buildah", "unshare"):
        (tmp_path / name).touch(mode=0o755)
    assert missing_programs() == ""


def test_a_machine_without_wheels_for_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    with pytest.raises(ImageError, match="riscv64"):
        Builder(cache=tmp_path, out=tmp_path).build()


def test_sizes_of_what_is_not_built_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="make image"):
        Builder(cache=tmp_path, out=tmp_path).sizes("pdcluster")
