from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.broker.state.consumer_offset import ConsumerOffsetManager

JAVA_FILE = """{
	"dataVersion":{
		"counter":2,
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"groupTopicMap":{
		"G":["T","U"]
	},
	"offsetTable":{
		"T@G":{0:12,1:7
		},
		"U@G":{3:1
		}
	}
}"""


def manager(tmp_path, **settings: object) -> ConsumerOffsetManager:
    return ConsumerOffsetManager(str(tmp_path / "consumerOffset.json"), **settings)


def test_commit_and_query(tmp_path):
    offsets = manager(tmp_path)
    assert offsets.query_offset("G", "T", 0) == -1
    offsets.commit_offset("host", "G", "T", 0, 5)
    assert offsets.query_offset("G", "T", 0) == 5
    assert offsets.query_offset("G", "T", 1) == -1 and offsets.query_offset("H", "T", 0) == -1
    assert offsets.query_offsets("G", "T") == {0: 5} and offsets.query_offsets("G", "U") is None


def test_an_offset_may_go_back_and_it_is_said(tmp_path, caplog):
    offsets = manager(tmp_path)
    offsets.commit_offset("10.0.0.1:5", "G", "T", 0, 5)
    offsets.commit_offset("10.0.0.1:5", "G", "T", 0, 3)
    assert offsets.query_offset("G", "T", 0) == 3
    assert "10.0.0.1:5: T@G, queue 0 goes back from 5 to 3" in caplog.text


def test_the_version_moves_in_steps(tmp_path):
    offsets = manager(tmp_path, update_version_step=3)
    for number in range(7):
        offsets.commit_offset("", "G", "T", 0, number)
    assert offsets.data_version.counter == 2


def test_only_changes_are_to_be_written(tmp_path):
    offsets = manager(tmp_path)
    offsets.commit_offset("", "G", "T", 0, 5)
    offsets.persist()
    offsets.commit_offset("", "G", "T", 0, 5)
    assert not offsets.dirty
    offsets.commit_offset("", "G", "T", 0, 6)
    assert offsets.dirty


def test_pull_offsets_are_for_the_moment_only(tmp_path):
    offsets = manager(tmp_path)
    offsets.commit_offset("", "G", "T", 0, 5)
    assert offsets.query_pull_offset("G", "T", 0) == 5
    offsets.commit_pull_offset("", "G", "T", 0, 9)
    assert offsets.query_pull_offset("G", "T", 0) == 9 and offsets.query_offset("G", "T", 0) == 5


def test_a_reset_holds_until_it_is_taken(tmp_path):
    offsets = manager(tmp_path)
    offsets.commit_offset("", "G", "T", 0, 50)
    offsets.assign_reset_offset("T", "G", 0, 10)
    assert offsets.has_offset_reset("T", "G", 0) and not offsets.has_offset_reset("T", "G", 1)
    assert offsets.query_offset("G", "T", 0) == 10
    offsets.commit_offset("", "G", "T", 0, 51)  # on its way when the reset came
    assert offsets.query_offset("G", "T", 0) == 10
    assert offsets.query_then_erase_reset_offset("T", "G", 0) == 10
    assert offsets.query_then_erase_reset_offset("T", "G", 0) is None
    assert not offsets.has_offset_reset("T", "G", 0) and offsets.query_offset("G", "T", 0) == 51
    offsets.assign_reset_offset("T", "G", -1, 10)
    offsets.assign_reset_offset("", "G", 0, 10)
    offsets.assign_reset_offset("T", "G", 1, -5)
    assert offsets.query_offset("G", "T", 1) == -1


def test_a_reset_of_a_group_without_offsets_is_one_from_the_start(tmp_path):
    offsets = manager(tmp_path, server_side_reset=False)
    offsets.assign_reset_offset("T", "G", 2, 10)
    assert offsets.query_offset("G", "T", 2) == 10 and not offsets.has_offset_reset("T", "G", 2)


def test_who_and_what(tmp_path):
    offsets = manager(tmp_path)
    for group, topic in (("G", "T"), ("G", "U"), ("H", "T"), ("GG", "TT")):
        offsets.commit_offset("", group, topic, 0, 1)
    offsets.offset_table["odd"] = {0: 1}
    assert offsets.which_group_by_topic("T") == {"G", "H"}
    assert offsets.which_topic_by_consumer("G") == {"T", "U"}
    assert offsets.group_topic_map() == {"G": {"T", "U"}, "H": {"T"}, "GG": {"TT"}}


def test_cloning(tmp_path):
    offsets = manager(tmp_path)
    offsets.commit_offset("", "G", "T", 0, 5)
    offsets.clone_offset("G", "H", "T")
    offsets.clone_offset("none", "H", "T")
    offsets.commit_offset("", "G", "T", 0, 6)
    assert offsets.query_offset("H", "T", 0) == 5


def test_least_offsets(tmp_path):
    offsets = manager(tmp_path)
    for group, queue_id, offset in (("G", 0, 5), ("H", 0, 3), ("I", 0, 1), ("G", 1, 9), ("H", 1, 2)):
        offsets.commit_offset("", group, "T", queue_id, offset)
    offsets.commit_offset("", "G", "U", 0, 1)
    least = offsets.query_min_offset_in_all_group("T", "I", lambda topic, queue_id: 3)
    assert least == {0: 3, 1: 9}
    assert offsets.query_min_offset_in_all_group("T", None, lambda topic, queue_id: 0) == {0: 1, 1: 2}


def test_forgetting(tmp_path):
    offsets = manager(tmp_path)
    for group, topic in (("G", "T"), ("G", "U"), ("H", "T"), ("GT", "TG")):
        offsets.commit_offset("", group, topic, 0, 1)
        offsets.commit_pull_offset("", group, topic, 0, 1)
        offsets.assign_reset_offset(topic, group, 0, 1)
    offsets.remove_offset("G")
    assert set(offsets.offset_table) == {"T@H", "TG@GT"}
    assert not offsets.has_offset_reset("T", "G", 0) and offsets.query_pull_offset("G", "T", 0) == -1
    offsets.clean_offset_by_topic("T")
    assert set(offsets.offset_table) == {"TG@GT"}


def test_a_file_as_java_writes_it_comes_back_the_same(tmp_path):
    (tmp_path / "consumerOffset.json").write_text(JAVA_FILE)
    offsets = manager(tmp_path)
    offsets.load()
    assert offsets.offset_table == {"T@G": {0: 12, 1: 7}, "U@G": {3: 1}}
    assert offsets.data_version.counter == 2
    offsets.persist()
    assert "".join((tmp_path / "consumerOffset.json").read_text().split()) == "".join(JAVA_FILE.split())


names = st.text("abcXYZ%|-_09", min_size=1, max_size=12)
numbers = st.integers(0, 2**63 - 1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(names, names, st.integers(0, 2**31 - 1), numbers), max_size=20))
def test_round_trip(tmp_path_factory, commits):
    directory = tmp_path_factory.mktemp("config")
    offsets = manager(directory)
    for group, topic, queue_id, offset in commits:
        offsets.commit_offset("", group, topic, queue_id, offset)
    offsets.persist()
    again = manager(directory)
    again.load()
    assert again.offset_table == offsets.offset_table and again.data_version == offsets.data_version
    assert again.encode() == offsets.encode()
