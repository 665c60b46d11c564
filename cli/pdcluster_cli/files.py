"""Reads resource files and replaces files as a whole.

Shell.
"""

from __future__ import annotations

from pathlib import Path

from pdcluster_api.loading import LoadedCluster, load_cluster
from pdcluster_cli.errors import FileError

__all__ = ["load_file", "write_whole"]


def load_file(path: Path) -> LoadedCluster:
    """Read the PDCluster of a file.

    Raises:
        FileError: The file is missing, a folder, not readable, or not UTF-8.
        ResourceError: It holds no valid PDCluster.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileError(f"{path} does not exist; name another file with -f") from error
    except IsADirectoryError as error:
        raise FileError(f"{path} is a folder; name a file in it with -f") from error
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path} is not UTF-8 text (byte {error.start}); save it as such"
        ) from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    return load_cluster(text, source=str(path))


def write_whole(path: Path, text: str) -> None:
    """Replace a file so that a reader sees the old or the new content, never a part."""
    draft = path.with_suffix(".new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
