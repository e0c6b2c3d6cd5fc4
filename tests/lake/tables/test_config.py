"""lake.toml: written, read, and refused with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

import mqlake.lake
from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.lake import topic_table
from mqlake.lake.tables.config import Lake, LakeFile, Topic, store_names, table_name
from tests.lake.tables.lakes import put, save


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), "iceberg", "https://catalog", "shop.eu", {"token": 'a"b'})
    topics = [
        Topic("Orders", {"broker-a": "/data/a", "/data/b": "/data/b"}),
        Topic("%RETRY%g", namesrv="h:9876", table="retries", partition="none", bodies='{"kind": "text"}'),
    ]
    file = LakeFile(lake, {each.topic: each for each in topics})
    file.save(str(tmp_path / "lake.toml"))
    assert LakeFile.load(str(tmp_path)) == LakeFile.load(str(tmp_path / "lake.toml")) == file


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[lake", "lake.toml: .*(line 1|end of document)"),
        ('[lake]\nwarehose = "/x"', "unknown key 'warehose'; did you mean 'warehouse'"),
        ('[lake]\nwarehouse = "/x"\nformat = "hudi"', "unknown table format 'hudi'"),
        ('[lake]\nformat = "delta"', "needed|missing|warehouse"),
        ('[lake]\nwarehouse = "/x"\n[topics.T]\n', "either store directories or name servers"),
        ('[lake]\nwarehouse = "/x"\n[topics.T]\nnamesrv = "h:1"\ntable = "a b"', "cannot be a table's name"),
        (
            '[lake]\nwarehouse = "/x"\n[topics.a-b]\nnamesrv = "h:1"\n[topics.a_b]\nnamesrv = "h:1"',
            "the topics a-b and a_b would have the same table a_b",
        ),
        ("", "give a warehouse"),
        ("lake = [1]", r"\[lake\] is a table"),
        ("[lake]\nwarehouse = 5", r"\[lake\] warehouse = 5: a text is needed"),
        ('[lake]\nwarehouse = "/x"\n[topics.T]\nstores = ["x"]', r"stores = \['x'\]: a table of texts"),
        ('[lake]\nwarehouse = "/x"\n[topics.T]\nstores = {a = 5}', "a table of texts"),
        (
            '[lake]\nwarehouse = "/x"\n[topics.T]\nnamesrv = "h:1"\ncolumns = "topic"',
            "a list of texts is needed",
        ),
        ('[lake]\nwarehouse = "/x"\n[topics.T]\nnamesrv = "h:1"\nlatest = "yes"', "true or false is needed"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "lake.toml").write_text(text)
    with pytest.raises(ConfigError, match=match):
        LakeFile.load(str(tmp_path))
    (tmp_path / "lake.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="'utf-8' codec"):
        LakeFile.load(str(tmp_path))


def test_a_lake_without_its_file_says_how_to_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that were filled by `lake run --warehouse` have no lake.toml that topic_table() could read."""
    said = rf"there is no lake.toml in {tmp_path}.*mqlake lake add NAME=STORE --warehouse {tmp_path} --topic"
    with pytest.raises(ConfigError, match=said):
        topic_table(tmp_path, "Orders")
    with pytest.raises(ConfigError, match=rf"^there is no {tmp_path}/other$"):
        topic_table(tmp_path / "other", "Orders")
    put(tmp_path / "store", 4)
    save(tmp_path, tmp_path / "store", "delta", "Orders")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert topic_table("~", "Orders").append_new().rows == 2
    stores, lake = store_names(("a=~/store",)), Lake("~/lake")
    assert (stores, lake.warehouse) == ({"a": f"{tmp_path}/store"}, f"{tmp_path}/lake")
    assert mqlake.lake.scan("~/store", "Orders").count_rows() == 2


def test_names() -> None:
    assert [table_name(each) for each in ("Orders", "%RETRY%g", "a-b.c", "7up")] == [
        "Orders", "_RETRY_g", "a_b_c", "_7up",
    ]  # fmt: skip
    assert store_names(("a=/data/x", "/data/y/")) == {"a": "/data/x", "/data/y": "/data/y"}
    with pytest.raises(ConfigError, match="two stores have the name 'a'"):
        store_names(("a=/data/x", "a=/data/y"))


def test_catalogs(tmp_path: Path) -> None:
    own = Lake(str(tmp_path)).catalog_options()
    assert own == {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path),
    }  # fmt: skip
    rest = Lake("", catalog="https://c", catalog_properties={"credential": "x"})
    assert rest.catalog_options() == {"type": "rest", "uri": "https://c", "credential": "x"}
    assert (
        Lake("", catalog="prod").catalog_options() == {} and Lake("", catalog="prod").catalog_name == "prod"
    )
    with pytest.raises(ConfigError, match="catalog 'ftp://x'"):
        Lake("", catalog="ftp://x").catalog_options()
    with pytest.raises(UnknownKeyError):
        Lake("/x", "parquet")
    for more in ({"catalog": "prod"}, {"catalog_properties": {"a": "b"}}):
        with pytest.raises(ConfigError, match="a catalog is for Iceberg"):
            Lake("/x", "delta", **more)  # type: ignore[arg-type]


def test_where_a_warehouse_may_be(tmp_path: Path) -> None:
    """Anywhere, but for that of an Iceberg lake whose catalog would be a file in it."""
    for lake in (
        Lake("s3://bucket/lake", "delta"),
        Lake("s3://bucket/lake", "iceberg", "prod"),
        Lake(str(tmp_path), "iceberg"),
        Lake(str(tmp_path / "new"), "delta"),
        Lake("", "iceberg", "prod"),
    ):
        lake.check_warehouse()
    with pytest.raises(ConfigError, match="is no local directory, and Iceberg's catalog is a file in it"):
        Lake("s3://bucket/lake", "iceberg").check_warehouse()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file: name a directory"):
        Lake(str(tmp_path / "file"), "delta").check_warehouse()
