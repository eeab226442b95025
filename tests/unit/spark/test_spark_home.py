"""The SPARK_HOME without Spark's own archive of PySpark: what it links, and when there is none."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pyspark
import pytest

from dstl_dagster.spark.local.home import home_without_archive, spark_home_set

REAL = Path(pyspark.__file__).parent


def test_it_has_all_of_spark_but_the_archive(tmp_path: Path) -> None:
    """Its links lead to the installed Spark; a second call finds the same folder, or completes it."""
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    home = home_without_archive(environ)
    assert home is not None
    assert home.parent == tmp_path / "dstl-dagster" / "spark-home"
    assert (home / "bin" / "spark-submit").samefile(REAL / "bin" / "spark-submit")
    assert (home / "jars").samefile(REAL / "jars")
    assert (REAL / "python" / "lib" / "pyspark.zip").exists()
    assert not (home / "python").exists()
    (home / "jars").unlink()  # as after a kill
    assert home_without_archive(environ) == home
    assert (home / "jars").samefile(REAL / "jars")


def test_only_a_launch_in_the_block_sees_it(tmp_path: Path) -> None:
    """Whatever becomes of the launch; other processes choose for themselves."""
    environ = {"XDG_CACHE_HOME": str(tmp_path)}

    def launch() -> None:
        with spark_home_set(environ):
            assert environ["SPARK_HOME"].startswith(str(tmp_path))
            raise RuntimeError("no Java")

    with pytest.raises(RuntimeError, match="no Java"):
        launch()
    assert environ == {"XDG_CACHE_HOME": str(tmp_path)}


def test_a_chosen_home_is_left_alone(tmp_path: Path) -> None:
    """Spark may be another one there."""
    environ = {"XDG_CACHE_HOME": str(tmp_path), "SPARK_HOME": "/opt/spark"}
    with spark_home_set(environ):
        assert environ["SPARK_HOME"] == "/opt/spark"
    assert environ["SPARK_HOME"] == "/opt/spark"
    assert not list(tmp_path.iterdir())


def test_a_spark_that_other_processes_would_not_find_keeps_its_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark that this process has from elsewhere: its workers may have it from the archive alone."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "elsewhere"))
    assert home_without_archive({"XDG_CACHE_HOME": str(tmp_path)}) is None


def test_a_folder_that_leads_elsewhere_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another place is, or none."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    home = home_without_archive(environ)
    assert home is not None
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path)
    assert home_without_archive(environ) is None
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = home_without_archive(environ)
    assert other is not None
    assert other.is_relative_to(tmp_path / f"dstl-dagster-{os.getuid()}")


def test_no_writable_place_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark then starts as ever."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    environ = {"XDG_CACHE_HOME": "/proc/nowhere"}
    assert home_without_archive(environ) is None
    with spark_home_set(environ):
        assert "SPARK_HOME" not in environ
