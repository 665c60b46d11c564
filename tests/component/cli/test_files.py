from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest
from tests.support.resources import resource, text_of

from pdcluster_api.problems import ResourceError
from pdcluster_cli.errors import FileError
from pdcluster_cli.exit_codes import ExitCode
from pdcluster_cli.files import load_file, write_whole


def test_a_resource_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(text_of(resource(name="mine")), encoding="utf-8")
    assert load_file(path).cluster.metadata.name == "mine"


def test_a_missing_file_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist; name another file with -f") as caught:
        load_file(tmp_path / "none.yaml")
    assert caught.value.exit_code is ExitCode.WRONG_USE


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder"):
        load_file(tmp_path)


def test_a_file_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"kind: \xe9\n")
    with pytest.raises(FileError, match=r"not UTF-8 text \(byte 6\)"):
        load_file(path)


def test_problems_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("", encoding="utf-8")
    with pytest.raises(ResourceError, match=f"{path}: is empty"):
        load_file(path)


def test_a_reader_never_sees_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    texts = ["a" * 200_000, "b" * 300_000]
    write_whole(path, texts[0])
    seen = set()

    def read() -> None:
        for _ in range(300):
            seen.add(path.read_text(encoding="utf-8"))

    reader = Thread(target=read)
    reader.start()
    for turn in range(100):
        write_whole(path, texts[turn % 2])
    reader.join()
    assert seen <= set(texts)
    assert [entry.name for entry in tmp_path.iterdir()] == ["endpoints.json"]
