"""A user's configuration, and how a bad one is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from egeria.config import _POLICIES, Config
from egeria.errors import EgeriaError

ROOT = Path(__file__).resolve().parents[3]


def refusal(**values: object) -> str:
    with pytest.raises(EgeriaError) as raised:
        Config(**values)
    assert raised.value.name == "BAD_CONFIG"
    return str(raised.value)


def test_the_default_is_auto_with_32_samples(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("EGERIA_CONTROLLER", raising=False)
    config = Config()
    assert config.address() is None
    assert json.loads(config.policy_json()) == {"auto": {}} and config.probe_batch() == 32
    rule = Config(policy="plasticity")
    assert json.loads(rule.policy_json()) == {"plasticity": {"batch_size": 32}}
    assert json.loads(rule.policy_json(16)) == {"plasticity": {"batch_size": 16}}


def test_the_address_comes_from_the_environment_unless_it_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EGERIA_CONTROLLER", "unix:/a")
    assert Config().address() == "unix:/a"
    assert Config(controller="b:1").address() == "b:1"
    assert Config(controller="none").address() is None
    assert Config(plans=[(3, 1)]).address() is None
    assert Config.from_env(plans=[(3, 1)]).address() is None and Config.from_env().address() == "unix:/a"


def test_pretrained_models_are_fine_tuned_where_the_user_leaves_the_policy_to_egeria(monkeypatch: pytest.MonkeyPatch):
    assert Config(pretrained=True).policy == "finetune"
    assert "finetune" in Config(pretrained=True).policy_json()
    assert Config(pretrained=True, policy="plasticity").policy == "plasticity"
    monkeypatch.setenv("EGERIA_PRETRAINED", "1")
    assert Config.from_env().policy == "finetune"
    monkeypatch.setenv("EGERIA_PRETRAINED", "0")
    assert Config.from_env().policy == "auto"


def test_everything_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    for name, value in {
        "OBSERVE": "1",
        "ENABLED": "no",
        "POLICY": "plasticity",
        "TOTAL_STEPS": "900",
        "POLICY_OPTIONS": '{"window": 5}',
        "REFERENCE": "local",
        "METRICS": "127.0.0.1:0",
        "TRAINING_JOB": "night",
        "CACHE_COMPRESSION": "zstd",
        "CACHE_JOB_QUOTA": "8GiB",
    }.items():
        monkeypatch.setenv(f"EGERIA_{name}", value)
    config = Config.from_env(total_steps=1000)
    assert (config.observe, config.enabled, config.total_steps, config.reference) == (True, False, 1000, "local")
    assert config.cache_form() == "zstd" and config.cache_job_bytes() == 8 << 30
    assert (config.options, config.metrics, config.training_job) == ({"window": 5}, "127.0.0.1:0", "night")


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [
        ("OBSERVE", "maybe", "must be 1 or 0"),
        ("TOTAL_STEPS", "many", "number of steps"),
        ("POLICY_OPTIONS", "{", "not JSON"),
        ("POLICY_OPTIONS", "3", "JSON object"),
    ],
)
def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, what: str):
    monkeypatch.setenv(f"EGERIA_{variable}", value)
    with pytest.raises(EgeriaError, match=rf"BAD_CONFIG.*EGERIA_{variable}.*{what}"):
        Config.from_env()


def test_unknown_values_are_refused_with_those_that_are_known():
    assert "'plasticity', 'actnorm', 'auto', 'staged', 'finetune', 'gradnorm', 'schedule', 'none'" in refusal(
        policy="magic"
    )
    assert "'auto', 'controller', 'local'" in refusal(reference="gpu")
    assert "'exact', 'fp16', 'bf16', 'int8'" in refusal(cache_precision="float16")
    assert "for exact activations" in refusal(cache_precision="int8", cache_compression="zstd")
    assert [Config(cache_compression=name).cache_form() for name in ("auto", "none", "lz4")] == ["auto", "exact", "lz4"]
    assert Config(cache_precision="int8").cache_form() == "int8"
    assert Config().cache_job_bytes() == 0 and Config(cache_job_quota=2**20).cache_job_bytes() == 2**20
    for size in (0, -1, True, "8GB", "many", 2**20 - 1, "1KiB", 2**63, 1.5):
        assert "'8GiB', at least 1MiB" in refusal(cache_job_quota=size)
    assert "interval_steps" in refusal(policy="plasticity", options={"intervall": 3})
    assert "it has: none" in refusal(policy="none", options={"window": 3})
    assert "entries" in refusal(policy="schedule")
    assert "dict" in refusal(options=[1])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval_steps", 0),
        ("interval_steps", True),
        ("window", 2),
        ("window", 1.5),
        ("tolerance", 0),
        ("tolerance", 2),
        ("batch_size", 1),
        ("bootstrap", "yes"),
        ("learning_rate_drop", 1),
        ("learning_rate_rise", -1),
        ("unfreeze_steps", 5),
        ("unfreeze_steps", [-1]),
    ],
)
def test_constants_out_of_range_are_refused_with_their_range(name: str, value: object):
    assert f"options['{name}'] is {value!r}; it must be" in refusal(policy="plasticity", options={name: value})


def test_good_constants_reach_the_controller_as_they_are():
    options = {
        "interval_steps": 7,
        "window": 4,
        "tolerance": 0.5,
        "signed_slope": True,
        "bootstrap": False,
        "learning_rate_drop": 0,
        "learning_rate_rise": 3.0,
        "unfreeze_steps": [5, 9],
        "batch_size": 16,
    }
    assert json.loads(Config(policy="plasticity", options=options).policy_json()) == {"plasticity": options}
    entries = [{"fraction": 0.5, "frozen_prefix": 2}]
    config = Config(policy="schedule", options={"entries": entries}, total_steps=10)
    assert json.loads(config.policy_json()) == {"schedule": {"entries": entries}}


@pytest.mark.parametrize(
    ("policy", "name", "value"),
    [
        ("auto", "start", 1.1),
        ("auto", "start", True),
        ("auto", "every", 0),
        ("auto", "max_modules", 0),
        ("auto", "threshold", 0),
        ("auto", "late_threshold", 1),
        ("auto", "readings", 3),
        ("auto", "unfreeze_rise", -1),
        ("auto", "unfreeze_rise", 0.5),
        ("snr", "max_modules", 0),
        ("snr", "start", 1.1),
        ("auto", "start", float("nan")),
        ("auto", "early_share", 1.5),
        ("staged", "begin", -0.1),
        ("staged", "stages", 0),
        ("staged", "deepest_prefix", 0),
        ("staged", "share", 0),
        ("staged", "area", 1),
        ("finetune", "budget", 0),
        ("finetune", "frozen_prefix", 0),
        ("gradnorm", "percentile", 101),
        ("gradnorm", "check_steps", 0),
    ],
)
def test_constants_of_the_other_policies_have_ranges_too(policy: str, name: str, value: object):
    assert f"options['{name}'] is {value!r}; it must be" in refusal(policy=policy, options={name: value})


def test_constants_of_the_other_policies_reach_the_controller_as_they_are():
    options = {"start": 0, "every": 0.05, "threshold": 0.1, "unfreeze_rise": 0}
    for policy in ("auto", "snr"):
        assert json.loads(Config(policy=policy, options=options).policy_json(16)) == {policy: options}
    for policy, constants in {
        "staged": {"begin": 0.6, "area": True},
        "finetune": {"budget": 0.5},
        "gradnorm": {"percentile": 40},
    }.items():
        assert json.loads(Config(policy=policy, options=constants).policy_json()) == {policy: constants}


def test_constants_that_are_no_more_are_refused_with_those_that_there_are():
    for name in ("second_opinion", "most_backoff", "signal_led", "area_left", "most_modules", "least_readings"):
        assert f"has no constant {name!r}; it has: start, lr_area_left," in refusal(options={name: 1})


def test_two_policies_read_plasticity():
    assert Config(policy="plasticity").reads_plasticity() and Config(policy="actnorm").reads_plasticity()
    assert not Config(policy="staged").reads_plasticity() and not Config().reads_plasticity()


def test_the_tables_of_the_documents_are_those_of_the_constants():
    script = ROOT / "docs" / "policy_constants.py"
    checked = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_the_page_of_settings_says_what_the_code_says():
    script = ROOT / "docs" / "reference_pages.py"
    checked = subprocess.run([sys.executable, str(script), "--check", "config.md"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_constants_are_those_of_the_wire():
    text = (ROOT / "proto" / "egeria" / "v1" / "controller.proto").read_text()
    fields = re.findall(r"^ +(\w+)Policy (\w+) = \d+;", text, re.MULTILINE)
    assert {policy for _, policy in fields} == set(_POLICIES)
    for message, policy in fields:
        body = re.search(rf"^message {message}Policy {{(}}|\n.*?^}})", text, re.MULTILINE | re.DOTALL)
        assert body is not None
        names = re.findall(r"^  (?:optional|repeated) \w+ (\w+) = \d+;", body.group(1), re.MULTILINE)
        assert set(names) == {constant["name"] for constant in _POLICIES[policy]["constants"]}, policy


def test_contradictions_are_refused():
    assert "differ" in refusal(policy="plasticity", batch_size=8, options={"batch_size": 16})
    assert "without a controller" in refusal(plans=[(3, 1)], controller="unix:/a")
    assert "observe switches nothing" in refusal(plans=[(3, 1)], observe=True)
    assert "rising steps" in refusal(plans=[(3, 1), (3, 2)])
    assert "host:port" in refusal(metrics="here")
    assert "total_steps" in refusal(total_steps=0)
    assert "batch_size" in refusal(batch_size=1)
