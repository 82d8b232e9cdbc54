"""Cluster specs and resolvers, which only parse, and the rules for clusters with servers."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import paceline as tf
from paceline.errors import InvalidArgument, InvalidType

ClusterSpec = tf.train.ClusterSpec
Simple = tf.distribute.cluster_resolver.SimpleClusterResolver
TFConfig = tf.distribute.cluster_resolver.TFConfigClusterResolver
WHOLE = {"chief": ["c:1"], "worker": ["w0:1", "w1:1"], "ps": ["p:1"]}


def set_tf_config(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))


@pytest.mark.contract(121)
def test_a_spec_says_what_it_was_given() -> None:
    spec = ClusterSpec({"worker": ["a:1", "b:2"], "ps": {"1": "c:3", 4: "d:4"}})
    assert spec.jobs == ["ps", "worker"]
    assert (spec.num_tasks("worker"), spec.num_tasks("ps")) == (2, 2)
    assert spec.task_indices("ps") == [1, 4]
    assert spec.task_address("ps", 4) == "d:4"
    assert spec.job_tasks("ps") == [None, "c:3", None, None, "d:4"]
    assert spec.as_dict() == {"worker": ["a:1", "b:2"], "ps": {1: "c:3", 4: "d:4"}}
    assert ClusterSpec(spec) == spec
    assert hash(ClusterSpec(spec)) == hash(spec)
    assert ClusterSpec({"worker": {"0": "a:1", "1": "b:2"}}) == ClusterSpec(
        {"worker": ("a:1", "b:2")}
    )
    assert spec
    assert not ClusterSpec({})


@pytest.mark.contract(121)
def test_what_a_spec_cannot_say() -> None:
    spec = ClusterSpec(WHOLE)
    with pytest.raises(InvalidArgument, match=r"jobs of this cluster are \['chief', 'ps', 'worker"):
        spec.num_tasks("evaluator")
    with pytest.raises(InvalidArgument, match=r"tasks of job 'worker' are \[0, 1\]"):
        spec.task_address("worker", 2)
    with pytest.raises(InvalidType, match="maps each job"):
        ClusterSpec(["a:1"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidType, match="list of addresses"):
        ClusterSpec({"worker": "a:1"})
    with pytest.raises(InvalidType, match="An address is a string"):
        ClusterSpec({"worker": [2222]})
    with pytest.raises(InvalidArgument, match="whole number from 0 on"):
        ClusterSpec({"worker": {"first": "a:1"}})


@pytest.mark.contract(121)
@pytest.mark.case("R121")
def test_tf_config_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = TFConfig()
    set_tf_config(
        monkeypatch,
        {
            "cluster": {**WHOLE, "ps": {"1": "p:1"}},
            "task": {"type": "worker", "index": "1"},
            "rpc_layer": "grpc",
            "environment": "cloud",
        },
    )
    assert resolver.cluster_spec().as_dict() == {**WHOLE, "ps": {1: "p:1"}}
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert (resolver.rpc_layer, resolver.environment) == ("grpc", "cloud")
    assert resolver.master() == "grpc://w1:1"
    assert resolver.master("chief", 0) == "grpc://c:1"
    assert resolver.master(rpc_layer="http") == "http://w1:1"


@pytest.mark.contract(121)
def test_arguments_and_setters_win_over_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    set_tf_config(
        monkeypatch, {"cluster": WHOLE, "task": {"type": 5, "index": 1}, "rpc_layer": "grpc"}
    )
    assert TFConfig().task_type == "5"
    resolver = TFConfig(task_type="ps", task_id=0, rpc_layer="http", environment="here")
    assert (resolver.task_type, resolver.task_id) == ("ps", 0)
    assert resolver.environment == "here"
    assert resolver.master() == "http://p:1"
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "grpc"
    assert resolver.master() == "grpc://w1:1"


@pytest.mark.contract(121)
@pytest.mark.parametrize("config", [None, "", "{}"])
def test_without_tf_config(monkeypatch: pytest.MonkeyPatch, config: str | None) -> None:
    if config is not None:
        set_tf_config(monkeypatch, config)
    resolver = TFConfig()
    assert resolver.cluster_spec() == ClusterSpec({})
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (None, None, None)
    assert resolver.master() == ""
    assert resolver.environment == ""


@pytest.mark.contract(121)
def test_the_master_of_small_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"cluster": {"worker": ["w:1"]}, "task": {"type": "worker", "index": 0}}
    set_tf_config(monkeypatch, one)
    assert TFConfig().master() == ""
    set_tf_config(monkeypatch, {**one, "session_master": "here:1"})
    assert TFConfig().master() == "here:1"
    set_tf_config(monkeypatch, {"cluster": WHOLE})
    with pytest.raises(InvalidArgument, match="needs its type and index"):
        TFConfig().master()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("{", "is JSON"),
        ("[]", "a JSON object with 'cluster' and 'task'"),
        ('{"cluster": []}', None),
        ('{"cluster": [1]}', "'cluster' in TF_CONFIG is a JSON object"),
    ],
)
def test_a_damaged_tf_config(
    monkeypatch: pytest.MonkeyPatch, config: str, text: str | None
) -> None:
    set_tf_config(monkeypatch, config)
    if text is None:
        assert not TFConfig().cluster_spec()
        return
    with pytest.raises(InvalidArgument, match=text):
        TFConfig().cluster_spec()


def test_a_damaged_task_index(monkeypatch: pytest.MonkeyPatch) -> None:
    set_tf_config(monkeypatch, {"task": {"type": "worker", "index": "second"}})
    with pytest.raises(InvalidArgument, match="index of a task is a whole number"):
        _ = TFConfig().task_id


def test_a_resolver_that_is_written_out() -> None:
    spec = ClusterSpec(WHOLE)
    resolver = Simple(
        spec, master="here:1", task_type="worker", task_id=1, environment="x", rpc_layer="grpc"
    )
    assert resolver.cluster_spec() is spec
    assert (resolver.task_type, resolver.task_id, resolver.environment) == ("worker", 1, "x")
    assert resolver.master() == "grpc://here:1"
    assert resolver.master("ps", 0) == "grpc://p:1"
    assert resolver.master("ps", 0, rpc_layer="http") == "http://p:1"
    assert Simple(spec).master() == ""
    assert Simple(spec).num_accelerators() == {}
    assert Simple(spec, num_accelerators={"GPU": 2}).num_accelerators("worker", 0) == {"GPU": 2}
    with pytest.raises(InvalidType, match=r"Wrap it: ClusterSpec\(\{\.\.\.\}\)"):
        Simple(WHOLE)  # pyright: ignore[reportArgumentType]


@pytest.mark.contract(85)
@pytest.mark.case("R123")
@pytest.mark.parametrize(
    ("cluster", "task", "text"),
    [
        ({}, (None, None), "at least one 'worker' task"),
        ({"worker": ["a:1"]}, (None, None), "at least one 'ps' task"),
        ({"worker": ["a:1"], "ps": []}, (None, None), "at least one 'ps' task"),
        ({"ps": ["a:1"], "chief": ["c:1"]}, (None, None), "at least one 'worker' task"),
        ({**WHOLE, "scribe": ["d:1"]}, (None, None), "job 'scribe'"),
        ({**WHOLE, "chief": ["a:1", "b:1"]}, (None, None), "at most one 'chief'"),
        ({**WHOLE, "evaluator": ["a:1", "b:1"]}, (None, None), "at most one 'evaluator'"),
        ({"worker": ["a:1"], "ps": ["a:1"]}, (None, None), "'a:1' for ps:0 and for worker:0"),
        (WHOLE, ("scribe", 0), "task_type='scribe'"),
        ({"worker": ["a:1"], "ps": ["b:1"]}, ("chief", 0), "task_type='chief'"),
        (WHOLE, ("worker", 2), r"tasks of job 'worker' are \[0, 1\]"),
    ],
)
def test_clusters_that_cannot_train_with_servers(
    cluster: Any, task: tuple[Any, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        tf.distribute.ParameterServerStrategy(Simple(ClusterSpec(cluster), "", *task))


@pytest.mark.contract(85)
@pytest.mark.case("R101")
def test_a_cluster_spec_gives_the_numbers_of_workers_and_servers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [f"w{i}:1" for i in range(3)]
    config = {"chief": ["c:1"], "worker": workers, "ps": ["p:1", "q:1"], "evaluator": ["e:1"]}
    set_tf_config(monkeypatch, {"cluster": config, "task": {"type": "chief", "index": 0}})
    resolver = TFConfig()
    with caplog.at_level(logging.WARNING, "paceline"):
        strategy = tf.distribute.ParameterServerStrategy(resolver)
    assert (strategy.cluster.workers, strategy.cluster.servers) == (3, 2)
    assert strategy.cluster_resolver is resolver
    [said] = [record.getMessage() for record in caplog.records]
    assert "3 workers and 2 servers" in said
    assert "addresses in it are not contacted" in said
    assert strategy.submit(lambda: 3).fetch() == 3


@pytest.mark.case("R123")
def test_the_chief_may_be_called_master() -> None:
    cluster = {"master": ["any:0"], "worker": ["any:0", "any:0"], "ps": ["any:0"]}
    resolver = Simple(ClusterSpec(cluster), task_type="master", task_id=0)
    assert tf.distribute.ParameterServerStrategy(resolver).cluster.workers == 2


@pytest.mark.contract(85)
def test_an_evaluator_need_not_be_in_the_spec() -> None:
    resolver = Simple(ClusterSpec(WHOLE), task_type="evaluator", task_id=0)
    assert tf.distribute.ParameterServerStrategy(resolver).cluster.workers == 2


@pytest.mark.contract(85)
def test_a_strategy_has_one_cluster() -> None:
    with pytest.raises(InvalidArgument, match="Leave one of them out"):
        tf.distribute.ParameterServerStrategy(
            Simple(ClusterSpec(WHOLE)), cluster=tf.cluster.Local(2)
        )
    with pytest.raises(InvalidType, match="The first argument is a cluster resolver"):
        tf.distribute.ParameterServerStrategy(tf.cluster.Local(2))
