"""NFS whose locks no other machine sees: found in Linux's list of mounts, and told by the pre-flight."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstl_dagster.storage import LocalObjectStore, MemoryObjectStore, Severity, check_store
from dstl_dagster.storage.preflight import lock_option

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:41 / /data rw,relatime shared:9 - nfs4 host:/export rw,vers=4.2,hard,local_lock=none,addr=10.0.0.2
41 22 0:42 / /old rw shared:9 master:3 - nfs host:/old rw,vers=3,nolock,local_lock=all,addr=10.0.0.2
42 41 0:43 / /old/with\\040space rw - nfs host:/x rw,vers=3,local_lock=flock
43 41 0:44 / /old/disk rw - xfs /dev/vdb rw
44 22 0:45 / /twice rw - nfs host:/y rw,nolock
45 22 0:46 / /twice rw - tmpfs tmpfs rw
garbage
"""


@pytest.mark.parametrize(
    ("folder", "option"),
    [
        ("/home", None),
        ("/data/store", None),
        ("/old", "nolock"),
        ("/older", None),
        ("/old/store", "nolock"),
        ("/old/with space/store", "local_lock=flock"),
        ("/old/disk/store", None),
        ("/twice", None),
    ],
)
def test_the_mount_of_a_folder_decides(folder: str, option: str | None) -> None:
    """The innermost one, and of two at one point the later."""
    assert lock_option(Path(folder), MOUNTS) == option


def test_the_preflight_warns(tmp_path: Path) -> None:
    """It is no error: one machine alone may use such a folder."""
    store = LocalObjectStore(tmp_path / "a b")
    mounted = f"41 22 0:42 / {tmp_path} rw - nfs host:/old rw,nolock"
    (found,) = check_store(store, mounts=mounted)
    assert (found.code, found.severity) == ("local_locks", Severity.WARNING)
    assert "nolock" in found.message
    assert check_store(store, mounts="") == check_store(MemoryObjectStore(), mounts=mounted) == []


def test_the_mounts_of_this_machine_are_read(tmp_path: Path) -> None:
    """By default; a local folder gives no warning."""
    assert check_store(LocalObjectStore(tmp_path)) == []
