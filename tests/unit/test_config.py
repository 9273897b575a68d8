"""Settings: presets, overrides, and one line for whatever is wrong."""

from pathlib import Path
from typing import Any

import pytest
from tables import rows
from twin_graph_cli.train import _name_of

from twin_graph import config
from twin_graph.config import loading, no_effect
from twin_graph.config.rules import check_that_it_learns
from twin_graph.errors import UsageError
from twin_graph.records import report
from twin_graph.snapshots.run import create


def load(*assignments: str, preset: str = "pong") -> config.Settings:
    return config.load(preset, map(config.parse_assignment, assignments))


@pytest.mark.parametrize("preset", config.preset_names())
def test_presets_are_valid_and_say_what_they_train(preset: str) -> None:
    assert config.load(preset).preset == preset
    assert len(config.preset_description(preset)) > 20


@pytest.mark.parametrize("preset", ["pong", "pong-rollouts", "breakout", "atari"])
def test_atari_presets_use_the_protocol_of_noframeskip_v4(preset: str) -> None:
    env = config.load(preset).env
    assert (env.sticky, env.noop_max, env.frame_skip, env.life_loss, env.clip_rewards) == (0.0, 30, 4, True, True)


@pytest.mark.parametrize("preset", ["dqn2015", "pong-rollouts"])
def test_presets_that_claim_a_papers_arithmetic_do_not_leave_the_precision_to_the_processor(preset: str) -> None:
    assert config.load(preset).twin.precision == "fp32"


def test_assignments_are_read_as_toml_and_else_as_text() -> None:
    settings = load(
        "train.batch_size=64",
        "train.steps=1,000,000",
        "env.sticky=0.25",
        "loss=mse",
        "model.hidden_units=[8, 8]",
        "twin.check=true",
    )
    assert settings.train.batch_size == 64
    assert settings.train.steps == 1_000_000  # as messages print it
    assert load("env.kwargs.size=640,480").env.kwargs == {"size": "640,480"}
    assert settings.env.sticky == 0.25
    assert settings.loss == "mse"
    assert settings.model.hidden_units == [8, 8]
    assert settings.twin.check is True


def test_null_takes_away_what_is_optional() -> None:
    assert load().train.clip_delta == 1.0
    assert load("train.clip_delta=null").train.clip_delta is None
    with pytest.raises(UsageError, match=r"train\.batch_size=null: must be a whole number"):
        load("train.batch_size=null")


def test_null_for_one_unit_of_a_schedule_leaves_the_others() -> None:
    assert load().refresh_schedule_of("target") == load("target.refresh_every_steps=null").refresh_schedule_of("target")


def test_arguments_of_an_environment_are_set_one_by_one_and_kept() -> None:
    settings = load("env.kwargs.size=8", "env.kwargs.name=hard", "env.kwargs.size=9")
    assert settings.env.kwargs == {"size": 9, "name": "hard"}
    assert config.validate(settings.model_dump()) == settings
    with pytest.raises(UsageError, match=r"^env\.kwargs\.size\.x=1: env\.kwargs\.size is 8, not a group of settings$"):
        load("env.kwargs.size=8", "env.kwargs.size.x=1")
    with pytest.raises(UsageError, match=r"^env\.kwargs\.x=1: env\.kwargs is 3, not a group of settings$"):
        load("env.kwargs=3", "env.kwargs.x=1")
    with pytest.raises(UsageError, match=r"env\.kwargs\.size cannot change in a run that has started"):
        config.change(settings, [("env.kwargs.size", 3)])


def test_settings_of_runs_that_began_before_a_setting_existed_are_read() -> None:
    old = load().model_dump()
    del old["env"]["kwargs"], old["env"]["vectorization"], old["evaluate"]["max_steps"]
    assert config.validate(old) == load()


def test_the_last_assignment_wins() -> None:
    assert load("seed=1", "seed=5").seed == 5


@pytest.mark.parametrize(("assignment", "message"), rows("config", "wrong_assignments", "assignment", "message"))
def test_what_is_wrong_is_said_in_one_line(assignment: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        load(assignment)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("key", "value", "fixed"), [("twin.threads", 0, 2), ("twin.precision", "auto", "bf16")])
def test_what_is_measured_when_a_run_begins_cannot_be_left_open_later(key: str, value: Any, fixed: Any) -> None:
    begun = config.change(config.load("cartpole"), [(key, fixed)])
    assert config.change(begun, [("twin.check", True), ("twin.overlap", False)]).twin.check
    with pytest.raises(UsageError, match=f"{key}={value} only works in a new run; this one is fixed at {fixed}"):
        config.change(begun, [(key, value)])


def test_an_unknown_preset_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown preset 'pongg'; there are atari, .*; did you mean 'pong'"):
        config.load("pongg")


def test_every_setting_says_what_it_means() -> None:
    for setting in config.describe(config.Settings()):
        assert setting.meaning, setting.key
        counted = setting.key.endswith(("_steps", "_updates", "_frames", "episodes", "steps"))
        assert setting.unit or not counted, f"{setting.key} counts something: say what"


def test_the_hash_of_settings_sees_every_change() -> None:
    assert load().sha256() == load().sha256() != load("train.discount=0.98").sha256()


@pytest.mark.parametrize(
    ("preset", "assignment", "with_", "needs"),
    rows("config", "without_effect", "preset", "assignment", "with", "needs"),
)
def test_a_setting_that_changes_nothing_is_named(preset: str, assignment: str, with_: str, needs: str) -> None:
    keys = [config.parse_assignment(text)[0] for text in (assignment, with_)]
    [sentence] = no_effect.without_effect(load(assignment, preset=preset), keys[:1])
    assert sentence.startswith(f"{keys[0]} has no effect here: it is used only ")
    assert needs in sentence
    assert not list(no_effect.without_effect(load(assignment, with_, preset=preset), keys))


def test_a_player_who_moves_at_random_has_no_share_of_random_moves_and_is_not_chosen_anew() -> None:
    keys = "opponent.epsilon", "opponent.refresh_every_steps"
    for policy, idle in (("random", keys), ("self", keys[1:]), ("latest", ())):
        settings = load(f"opponent.policy={policy}", preset="tictactoe")
        assert [told.split()[0] for told in no_effect.without_effect(settings, keys)] == list(idle)


def test_without_episodes_no_evaluation_is_ever_due() -> None:
    [told] = no_effect.without_effect(load("evaluate.episodes=0"), ["evaluate.every_steps", "evaluate.episodes"])
    assert told == "evaluate.every_steps has no effect here: it is used only with evaluate.episodes=1 or more"


def test_workers_make_no_chunks_and_nothing_is_compiled() -> None:
    chosen = {"train.chunk_steps": "8", "twin.compiled": "true", "twin.check": "true"}
    assignments = [f"{key}={value}" for key, value in chosen.items()]
    told = list(no_effect.without_effect(load(*assignments, "workers.count=2", preset="cartpole"), chosen))
    assert told == [f"{key} has no effect here: it is used only with workers.count=0" for key in chosen]
    assert not list(no_effect.without_effect(load(*assignments, preset="cartpole"), chosen))


def test_one_reason_is_enough() -> None:
    settings = load("workers.count=2", "train.chunk_steps=0", preset="cartpole")
    assert len(list(no_effect.without_effect(settings, ["twin.overlap"]))) == 1


def test_only_games_of_images_wait_for_a_stack_of_them() -> None:
    short = "train.n_step=1", "train.start_steps=40"
    assert load(*short, "env.count=8", preset="cartpole").fewest_start_steps == 24
    with pytest.raises(UsageError, match="8 environments need 48 agent steps before one n-step transition"):
        load(*short, "env.count=8", preset="pong")


def test_a_rate_that_is_zero_for_the_last_of_the_rounded_steps_is_refused() -> None:
    linear = "train.learning_rate_schedule=linear", "train.learning_rate_end=0", "train.learning_rate_updates=49500"
    check_that_it_learns(load(*linear, "train.steps=100000", preset="cartpole"))
    with pytest.raises(UsageError, match=r"learn nothing after 49,500 of 49,50[1-9] updates"):
        check_that_it_learns(load(*linear, "train.steps=100001", preset="cartpole"))


def test_all_settings_that_may_change_nothing_exist() -> None:
    names = config.setting_names()
    for prefixes in [*no_effect._USED_ONLY, *no_effect._USED_ONLY_IN.values()]:
        for prefix in prefixes:
            assert any(name.startswith(prefix) for name in names), prefix


@pytest.mark.parametrize(
    ("preset", "environment", "name"),
    [
        *(("cartpole", "CartPole-v1", "cartpole"), ("pong", "ALE/Pong-v5", "pong"), ("breakout", None, "breakout")),
        *(("cartpole", "shop:Shop-v0", "shop"), ("cartpole", "my.package:ns/My_Shop-v12", "my_shop")),
        *(("atari", "ALE/SpaceInvaders-v5", "spaceinvaders"), ("cartpole", "LunarLander-v3", "lunarlander")),
        *(("connect-four", "OpenSpiel/hex", "hex"), ("cartpole", "a:../..-v1", "cartpole")),
    ],
)
def test_a_run_is_called_after_an_environment_that_is_not_its_presets(
    preset: str, environment: str | None, name: str
) -> None:
    assert _name_of(config.load(preset, [("env.id", environment)] if environment else [])) == name


def test_settings_that_differ_are_named_with_both_values() -> None:
    ours, theirs = load("env.kwargs.a=1"), load("env.kwargs.a=2", "train.batch_size=64", "twin.threads=3")
    before = config.load("pong")
    assert list(config.differences(ours, theirs)) == [
        ("env.kwargs", {"a": 1}, {"a": 2}),
        ("train.batch_size", before.train.batch_size, 64),
        ("twin.threads", before.twin.threads, 3),
    ]


def test_a_preset_is_read_once_however_many_runs_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three", "four"):
        create(tmp_path / name, load("env.sticky=0.25", preset="cartpole"))
    reads: list[str] = []
    read = loading.tomllib.loads
    monkeypatch.setattr(loading.tomllib, "loads", lambda text: reads.append(text) or read(text))
    assert [len(run.without_effect) for run in report.runs(tmp_path)] == [1, 1, 1, 1]
    assert len(reads) <= 1
