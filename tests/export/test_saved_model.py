import dataclasses
import json
import os
import subprocess
import sys
import threading

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from ale_py import ALEInterface, LoggerMode, roms
from tensorflow.core.protobuf import saved_model_pb2

from rainbow_tf.agent.actor import Actor
from rainbow_tf.agent.networks import make_network, make_support
from rainbow_tf.config import Config, ConfigError
from rainbow_tf.environments.atari import SCREEN_SHAPE
from rainbow_tf.environments.base import make_world
from rainbow_tf.export import saved_model, screens, warmup
from rainbow_tf.export.runs import export_run
from rainbow_tf.export.saved_model import Training, cvar, export_policy, serving_shape, to_stacks
from rainbow_tf.games import GAMES
from rainbow_tf.runs.store import CHECKPOINTS, Best, CheckpointStore
from rainbow_tf.runs.weights import AGENT_FILE, named, values, write_best

CARTPOLE = Config(environment="CartPole-v1", v_min=0, v_max=100)
OFF = {
    "double": False,
    "prioritized": False,
    "dueling": False,
    "distributional": False,
    "noisy": False,
    "n_step": 1,
}
CONFIGS = {
    "cartpole": CARTPOLE,
    **{f"cartpole_no_{k}": dataclasses.replace(CARTPOLE, **{k: v}) for k, v in OFF.items()},
    "cartpole_dqn": dataclasses.replace(CARTPOLE, **OFF),
    "cartpole_stack": dataclasses.replace(CARTPOLE, frame_stack=3),
    "minatar": Config(environment="MinAtar/Breakout-v1"),
    "minatar_stack": Config(environment="MinAtar/Breakout-v1", frame_stack=2, dueling=False),
    "qbert": Config(game="qbert"),
    "pong_dqn": Config(game="pong", network="data_efficient", **OFF),
    "breakout_stack": Config(game="breakout", frame_stack=2, network="data_efficient"),
}
NOISY = ("cartpole", "qbert")
ALPHAS = (0.001, 0.1, 0.25, 0.6, 1.0)

# Plays models as TF Serving's loader does: TensorFlow and NumPy, and nothing of this package.
FRESH_PROCESS = """
import sys
import numpy as np
import tensorflow as tf

inputs, outputs = dict(np.load(sys.argv[1])), {}
for folder in sys.argv[3:]:
    name = folder.split("/")[-2]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], folder)
        for key, signature in model.signature_def.items():
            if key.startswith("__"):
                continue
            feed = {v.name: inputs[f"{name}/{k}"] for k, v in signature.inputs.items()}
            names = {k: v.name for k, v in signature.outputs.items()}
            for call in ("first", "second"):
                for k, v in session.run(names, feed).items():
                    is_text = v.dtype == object
                    outputs[f"{name}/{key}/{k}/{call}"] = v.astype(bytes) if is_text else v
            if key in ("serving_default", "risk"):
                one = {k: v[:1] for k, v in feed.items()}
                for k, v in session.run(names, one).items():
                    outputs[f"{name}/{key}/{k}/one"] = v
                try:
                    session.run(names, {k: v[:0] for k, v in feed.items()})
                except tf.errors.InvalidArgumentError as error:
                    assert "The batch is empty" in str(error), error
                else:
                    raise AssertionError("an empty batch was answered")
assert not any(name.startswith("rainbow_tf") for name in sys.modules)
np.savez(sys.argv[2], **outputs)
"""


def make_agent(config, name="online"):
    """A network with weights that are not the first ones, its world's spec, and real stacks."""
    world = make_world(config, num_envs=2, seed=7, training=False)
    network = make_network(config, world.spec, seed=3, name=name)
    rng = np.random.default_rng(0)
    for variable in network.trainable_variables:
        variable.assign(variable + rng.normal(0, 0.03, variable.shape))
    stacks = [world.reset().observation]
    for _ in range(5):
        stacks.append(world.step(rng.integers(world.spec.num_actions, size=2)).observation)
    world.close()
    return network, world.spec, np.concatenate(stacks)


def to_client(stacks, spec):
    """Stacks [B, S, *frame] as a client sends them, by another way than the graph's."""
    if len(spec.frame_shape) > 1:
        frames = [
            stacks[:, i].reshape((*stacks[:, i].shape, -1)[:4]) for i in range(len(stacks[0]))
        ]
        frames = [f if f.ndim == 4 else f[..., None] for f in frames]
        return np.concatenate(frames, axis=-1)
    return stacks[:, 0] if spec.frame_stack == 1 else stacks


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """All kinds of agents: what they say in memory, and what a fresh process reads from them."""
    folder = tmp_path_factory.mktemp("served")
    inputs, agents, models = {}, {}, []
    for name, config in CONFIGS.items():
        network, spec, stacks = make_agent(config)
        agents[name] = network, spec, stacks
        for noisy in (False, True) if name in NOISY else (False,):
            key = f"{name}_noisy" if noisy else name
            export = export_policy(
                network,
                config=config,
                spec=spec,
                training=Training(1_000, 12.5, "no-op starts"),
                output_dir=folder / key,
                noisy=noisy,
            )
            models.append(str(export.folder))
            rng = np.random.default_rng(1)
            screen_shape = (2, spec.frame_stack, 2, *SCREEN_SHAPE, 3)
            inputs[f"{key}/observations"] = to_client(stacks, spec)
            inputs[f"{key}/alpha"] = np.resize(np.float32(ALPHAS), len(stacks))
            inputs[f"{key}/query"] = np.zeros(1, np.int32)
            inputs[f"{key}/frames"] = rng.integers(0, 256, screen_shape, np.uint8)
    np.savez(folder / "inputs.npz", **inputs)
    result = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, "inputs.npz", "outputs.npz", *models],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    outputs = dict(np.load(folder / "outputs.npz"))
    return folder, agents, inputs, outputs


def worst_share(support, probs, alpha):
    """CVaR by its definition: the mean over the quantiles below alpha, in small steps."""
    levels = (np.arange(20_000) + 0.5) / 20_000 * alpha
    atoms = np.minimum(np.searchsorted(np.cumsum(probs), levels), len(support) - 1)
    return support[atoms].mean()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_fresh_process_answers_as_the_agent_in_memory(served, name):
    _, agents, inputs, outputs = served
    network, spec, stacks = agents[name]
    config = CONFIGS[name]
    support = make_support(config)
    logits = network(stacks).numpy()
    expected = logits[..., 0]
    if support is not None:
        probs = np.exp(logits - logits.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        expected = probs @ support
        answered = outputs[f"{name}/serving_default/probabilities/first"]
        np.testing.assert_allclose(answered, probs, atol=1e-5)
        cvars = outputs[f"{name}/risk/action_values/first"]
        alphas = inputs[f"{name}/alpha"]
        for b, alpha in enumerate(alphas):
            by_hand = [worst_share(support, p, alpha) for p in probs[b].astype(np.float64)]
            np.testing.assert_allclose(cvars[b], by_hand, atol=0.01 * (support[1] - support[0]))
        chosen = outputs[f"{name}/risk/actions/first"]
        np.testing.assert_array_equal(chosen, cvars.argmax(1))
        np.testing.assert_array_equal(outputs[f"{name}/risk/values/first"], cvars.max(1))
    values = outputs[f"{name}/serving_default/q_values/first"]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)
    actions = outputs[f"{name}/serving_default/actions/first"]
    assert actions.dtype == np.int32
    actor = Actor(
        network=network,
        support=support,
        num_actions=spec.num_actions,
        noise=False,
        rng=np.random.default_rng(0),
    )
    np.testing.assert_array_equal(actions, actor.act(stacks))
    if support is not None:
        is_mean = inputs[f"{name}/alpha"] == 1
        np.testing.assert_array_equal(chosen[is_mean], actions[is_mean])
        np.testing.assert_array_equal(cvars[is_mean], values[is_mean])


@pytest.mark.parametrize("name", CONFIGS)
def test_agents_export_what_they_have(served, name):
    _, _, _, outputs = served
    found = {key.split("/")[1] for key in outputs if key.startswith(f"{name}/")}
    config = CONFIGS[name]
    expected = {"serving_default", "metadata"}
    expected |= {"risk"} if config.distributional else set()
    expected |= {"from_frames"} if config.game is not None else set()
    assert found == expected
    has_probabilities = f"{name}/serving_default/probabilities/first" in outputs
    assert has_probabilities == config.distributional


def test_the_batch_is_free(served):
    _, _, _, outputs = served
    for name in CONFIGS:
        values = outputs[f"{name}/serving_default/q_values/one"]
        assert len(values) == 1
        first = outputs[f"{name}/serving_default/q_values/first"][:1]
        np.testing.assert_allclose(values, first, rtol=1e-5, atol=1e-5)


def test_observations_have_the_shape_of_the_issue(served):
    _, agents, _, _ = served
    shapes = {name: serving_shape(spec) for name, (_, spec, _) in agents.items()}
    assert shapes["qbert"] == (84, 84, 4)
    assert shapes["breakout_stack"] == (84, 84, 2)
    assert shapes["minatar"] == (10, 10, 4)
    assert shapes["minatar_stack"] == (10, 10, 8)
    assert shapes["cartpole"] == (4,)
    assert shapes["cartpole_stack"] == (3, 4)


def test_stacks_come_back_from_what_a_client_sends(served):
    _, agents, inputs, _ = served
    for name, (_, spec, stacks) in agents.items():
        np.testing.assert_array_equal(to_stacks(inputs[f"{name}/observations"], spec), stacks)


@pytest.mark.parametrize("name", NOISY)
def test_noise_is_left_out_unless_it_is_wanted(served, name):
    _, _, _, outputs = served
    first, second = (outputs[f"{name}/serving_default/q_values/{c}"] for c in ("first", "second"))
    np.testing.assert_array_equal(first, second)
    key = f"{name}_noisy/serving_default/q_values"
    noisy_first, noisy_second = outputs[f"{key}/first"], outputs[f"{key}/second"]
    assert np.abs(noisy_first - noisy_second).min() > 0
    assert np.abs(noisy_first - first).min() > 0
    assert np.abs(noisy_first - first).max() < np.ptp(make_support(CONFIGS[name])) / 2


def test_every_example_draws_its_own_noise(tmp_path):
    network, spec, stacks = make_agent(CARTPOLE)
    signatures = saved_model.make_signatures(
        network, config=CARTPOLE, spec=spec, training=Training(), noisy=True
    )
    alike = np.repeat(stacks[:1, 0], 16, axis=0)
    values = signatures["serving_default"](observations=tf.constant(alike))["q_values"].numpy()
    assert len(np.unique(values[:, 0])) == 16


def variable_names(folder):
    model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    nodes = model.meta_graphs[0].graph_def.node
    return [n.attr["shared_name"].s.decode() for n in nodes if n.op == "VarHandleOp"]


def test_only_the_variables_that_are_read_are_written(served):
    folder, agents, _, _ = served
    mean = variable_names(folder / "qbert" / "1")
    noisy = variable_names(folder / "qbert_noisy" / "1")
    assert len(mean) == 14  # A kernel and a bias of three convolutions and four dense layers.
    assert not any("sigma" in name or "seed" in name for name in mean)
    assert len(noisy) == 14 + 4 * 3  # Two scales and a seed of every noisy layer.
    size = (folder / "qbert" / "1" / "variables" / "variables.data-00000-of-00001").stat().st_size
    network = agents["qbert"][0]
    weights = [w for w in network.trainable_variables if "sigma" not in w.path]
    assert size == pytest.approx(4 * sum(int(np.prod(w.shape)) for w in weights), rel=0.01)


def test_metadata_says_what_it_is(served):
    _, _, _, outputs = served
    facts = {
        key.split("/")[2]: value[0]
        for key, value in outputs.items()
        if key.startswith("qbert/metadata/") and key.endswith("/first")
    }
    assert facts["game"] == b"qbert"
    assert facts["agent"] == b"rainbow"
    assert facts["action_meanings"].tolist() == [
        b"NOOP",
        b"FIRE",
        b"UP",
        b"RIGHT",
        b"LEFT",
        b"DOWN",
    ]
    np.testing.assert_array_equal(facts["support"], make_support(CONFIGS["qbert"]))
    assert facts["frames_trained"] == 1_000
    assert facts["score"] == 12.5
    assert facts["score_protocol"] == b"no-op starts"
    assert not facts["noisy"]
    preprocessing = json.loads(facts["preprocessing"])
    assert preprocessing["observation_shape"] == [84, 84, 4]
    assert (preprocessing["action_repeat"], preprocessing["protocol"]) == (4, "paper")
    assert json.loads(facts["versions"])["tensorflow"] == tf.__version__
    assert outputs["cartpole/metadata/game/first"] == b"CartPole-v1"
    assert "cartpole_dqn/metadata/support/first" not in outputs


def test_what_is_unknown_is_said_so():
    _, spec, _ = make_agent(CARTPOLE)
    facts = saved_model.describe(CARTPOLE, spec, Training(), noisy=False)
    assert facts["frames_trained"] == -1
    assert np.isnan(facts["score"])
    assert facts["score_protocol"] == ""


# Conditional value at risk.


def test_cvar_by_hand():
    support = np.float32([-10, 0, 10])
    logits = np.log(np.float32([[[0.2, 0.5, 0.3], [1e-30, 1, 1e-30]]] * 7))
    alpha = np.float32([0.1, 0.2, 0.45, 0.8, 1.0, 0.0, 7.0])
    values = cvar(support, tf.constant(logits), tf.constant(alpha)).numpy()
    # 0.45 takes all of -10 and half of 0: -2 / 0.45. 0.8 takes a third of 10: (-2 + 1) / 0.8.
    np.testing.assert_allclose(values[:, 0], [-10, -10, -2 / 0.45, -1.25, 1, -10, 1], rtol=1e-5)
    np.testing.assert_allclose(values[:, 1], np.zeros(7), atol=1e-5)
    # The careful choose what is certain; who looks at the mean takes the gamble.
    np.testing.assert_array_equal(values.argmax(1), [1, 1, 1, 1, 0, 1, 0])


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(seed=st.integers(0, 2**32 - 1))
def test_cvar_grows_with_alpha_up_to_the_mean(seed):
    rng = np.random.default_rng(seed)
    support = np.linspace(-3, 5, 9, dtype=np.float32)
    logits = np.repeat(rng.normal(0, 3, (1, 4, 9)).astype(np.float32), 30, axis=0)
    alpha = np.linspace(0.001, 1, 30, dtype=np.float32)
    values = cvar(support, tf.constant(logits), tf.constant(alpha)).numpy()
    assert (np.diff(values, axis=0) >= -1e-4).all()
    assert (values >= -3 - 1e-4).all()
    np.testing.assert_allclose(values[-1], tf.nn.softmax(logits[0]).numpy() @ support, atol=1e-5)


# Raw screens.


def play(game, num_steps, config):
    """Stacks of the training's world, and the screens of an emulator that plays the same."""
    ALEInterface.setLoggerMode(LoggerMode.Error)
    world = make_world(config, num_envs=1, seed=5, training=True)
    emulator = ALEInterface()
    emulator.setInt("random_seed", int(np.random.SeedSequence(5).generate_state(1)[0]) >> 1)
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.loadROM(roms.get_rom_path(game))
    emulator.reset_game()
    actions = emulator.getMinimalActionSet()
    rng = np.random.default_rng(0)

    pair = np.stack([emulator.getScreenRGB()] * 2)
    recent = [np.zeros_like(pair)] * (config.stack - 1) + [pair]
    stacks, frames = [world.reset().observation[0]], [np.stack(recent)]
    for _ in range(num_steps):
        action = rng.integers(len(actions), size=1)
        output = world.step(action)
        played = []
        for _ in range(config.action_repeat):
            emulator.act(actions[action[0]])
            played.append(emulator.getScreenRGB())
        if output.episode_over[0]:
            break
        recent = [*recent[1:], np.stack((played * 2)[-2:])]
        stacks.append(output.observation[0])
        frames.append(np.stack(recent))
    world.close()
    return np.stack(stacks), np.stack(frames)


def largest_difference_and_equal_actions(game, num_steps, **settings):
    config = Config(game=game, noop_max=0, **settings)
    stacks, frames = play(game, num_steps, config)
    assert np.ptp(stacks) > 0
    network, spec, _ = make_agent(config)
    signatures = saved_model.make_signatures(
        network, config=config, spec=spec, training=Training(), noisy=False
    )
    difference, equal = 0, []
    for i in range(0, len(stacks), 8):
        shrunk = tf.function(screens.to_frames)(tf.constant(frames[i : i + 8])).numpy()
        difference = max(difference, np.abs(shrunk.astype(int) - stacks[i : i + 8]).max())
        raw = signatures["from_frames"](frames=tf.constant(frames[i : i + 8]))
        client = tf.constant(to_client(stacks[i : i + 8], spec))
        ready = signatures["serving_default"](observations=client)
        equal += (raw["actions"] == ready["actions"]).numpy().tolist()
    print(f"{game}: largest difference {difference}, equal actions {np.mean(equal):.1%}")
    return difference, np.mean(equal)


@pytest.mark.parametrize("game", ["ms_pacman", "space_invaders", "seaquest"])
def test_raw_screens_become_the_training_s_frames(game):
    assert largest_difference_and_equal_actions(game, 60) == (0, 1)


def test_raw_screens_without_repeats_and_with_another_stack():
    result = largest_difference_and_equal_actions("pong", 20, action_repeat=1, frame_stack=2)
    assert result == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_raw_screens_of_every_game(game):
    assert largest_difference_and_equal_actions(game, 150) == (0, 1)


def test_area_taps_by_hand():
    pixels, weights = screens.area_taps(5, 2)
    np.testing.assert_array_equal(pixels, [[0, 2], [1, 3], [2, 4]])
    np.testing.assert_allclose(weights, [[0.4, 0.2], [0.4, 0.4], [0.2, 0.4]], rtol=1e-6)


# Writing.


@pytest.fixture(scope="module")
def cartpole():
    network, spec, _ = make_agent(CARTPOLE)
    return network, {"config": CARTPOLE, "spec": spec, "training": Training()}


def test_versions_count_up(cartpole, tmp_path):
    network, settings = cartpole
    for name in ("7", "abc", "99x"):
        (tmp_path / name).mkdir()
    folders = [export_policy(network, output_dir=tmp_path, **settings).folder for _ in range(2)]
    assert [folder.name for folder in folders] == ["8", "9"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "8", "9", "99x", "abc"]


def test_a_faster_export_is_not_overwritten(cartpole, tmp_path, monkeypatch):
    network, settings = cartpole
    rename = os.rename

    def late(source, target):
        monkeypatch.setattr(os, "rename", rename)
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "theirs").touch()
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    export = export_policy(network, output_dir=tmp_path, **settings)
    assert export.folder == tmp_path / "2"
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["theirs"]


def test_a_watcher_never_sees_half_a_model(cartpole, tmp_path):
    network, settings = cartpole
    seen, done = [], threading.Event()

    def watch():
        while not seen and not done.is_set():
            for path in tmp_path.iterdir():
                if path.name.isdigit():
                    seen.append({file.relative_to(path) for file in path.rglob("*")})

    watcher = threading.Thread(target=watch)
    watcher.start()
    folder = export_policy(network, output_dir=tmp_path, **settings).folder
    watcher.join(30)
    done.set()
    assert seen == [{file.relative_to(folder) for file in folder.rglob("*")}]


@pytest.mark.parametrize("stage", ["write_model", "check_version", "_publish", "write_requests"])
def test_a_failure_leaves_nothing(cartpole, tmp_path, monkeypatch, stage):
    network, settings = cartpole
    owner = warmup if stage == "write_requests" else saved_model
    original = getattr(owner, stage)

    def fail(*arguments, **keywords):
        if stage != "_publish":
            original(*arguments, **keywords)
        assert not [path for path in tmp_path.iterdir() if path.name.isdigit()]
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, stage, fail)
    with pytest.raises(KeyboardInterrupt):
        export_policy(network, output_dir=tmp_path, **settings)
    assert not list(tmp_path.iterdir())


def test_others_may_read_what_was_written(cartpole, tmp_path):
    network, settings = cartpole
    folder = export_policy(network, output_dir=tmp_path, **settings).folder
    assert folder.stat().st_mode & 0o055 == 0o055


def planted(body):
    """A signature that should not be exported."""
    specs = [tf.TensorSpec((None,), tf.float32, "x")]
    return tf.function(lambda x: {"y": body(x)}, input_signature=specs).get_concrete_function()


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (lambda x: tf.numpy_function(np.sin, [x], tf.float32), "Python"),
        (lambda x: tf.py_function(np.sin, [x], tf.float32), "Python"),
        (lambda x: tf.fill(tf.shape(x), "/home/me/table.csv"), "/home/me/table.csv"),
        (lambda x: tf.fill(tf.shape(x), '{"log": "/var/log/x"}'), "/var/log/x"),
        (tf.function(lambda x: x * x, jit_compile=True), "XLA"),
    ],
)
def test_what_cannot_be_served_is_refused(cartpole, tmp_path, monkeypatch, body, named):
    network, settings = cartpole
    make = saved_model.make_signatures
    monkeypatch.setattr(
        saved_model, "make_signatures", lambda *a, **k: {**make(*a, **k), "planted": planted(body)}
    )
    with pytest.raises(ConfigError, match="refused") as error:
        export_policy(network, output_dir=tmp_path, **settings)
    assert named in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_target_network_is_refused(tmp_path):
    network, spec, _ = make_agent(CARTPOLE, name="target")
    with pytest.raises(ConfigError, match="only training needs"):
        export_policy(network, config=CARTPOLE, spec=spec, training=Training(), output_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_signature_that_got_lost_is_refused(cartpole, tmp_path, monkeypatch):
    network, settings = cartpole
    write = saved_model.write_model

    def forgetful(network, signatures, folder):
        write(network, {k: v for k, v in signatures.items() if k != "risk"}, folder)

    monkeypatch.setattr(saved_model, "write_model", forgetful)
    with pytest.raises(ConfigError, match="risk is missing"):
        export_policy(network, output_dir=tmp_path, **settings)


def test_warmup_requests(served):
    prediction_log = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    folder, _, _, _ = served
    path = folder / "qbert" / "1" / "assets.extra" / "tf_serving_warmup_requests"
    found = []
    for record in tf.data.TFRecordDataset(str(path)):
        request = prediction_log.PredictionLog.FromString(record.numpy()).predict_log.request
        shapes = {k: tf.make_ndarray(v).shape for k, v in request.inputs.items()}
        found.append((request.model_spec.signature_name, shapes))
    assert found == [
        (name, shapes)
        for name, make in {
            "serving_default": lambda b: {"observations": (b, 84, 84, 4)},
            "from_frames": lambda b: {"frames": (b, 4, 2, 210, 160, 3)},
            "risk": lambda b: {"observations": (b, 84, 84, 4), "alpha": (b,)},
            "metadata": lambda b: {"query": (b,)},
        }.items()
        for shapes in (make(1), make(8))
    ]
    assert path.stat().st_size < 10_000


def test_without_the_serving_api_there_are_no_warmup_requests(cartpole, tmp_path, monkeypatch):
    network, settings = cartpole
    monkeypatch.setattr(warmup.importlib.util, "find_spec", lambda name: None)
    export = export_policy(network, output_dir=tmp_path, **settings)
    assert export.num_warmup_requests == 0
    assert not (export.folder / "assets.extra").exists()


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_lite_answers_alike(cartpole, tmp_path):
    network, settings = cartpole
    folder = export_policy(network, output_dir=tmp_path, lite=True, **settings).folder
    interpreter = tf.lite.Interpreter(str(folder / saved_model.LITE_FILE))
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    answers = interpreter.get_signature_runner("serving_default")(observations=observations)
    expected = tf.saved_model.load(str(folder)).signatures["serving_default"](
        observations=tf.constant(observations)
    )
    np.testing.assert_allclose(answers["q_values"], expected["q_values"], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(answers["actions"], expected["actions"])


# The command.


@pytest.fixture
def run_dir(cartpole, tmp_path):
    """A run's folder with best weights."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(CARTPOLE.to_json())
    write_best(folder, cartpole[0], Best(4_000, 20.5, 3, "500 steps"))
    return folder


def run_export(*arguments):
    return subprocess.run(
        [
            *(sys.executable, "-W", "error"),
            *("-W", "ignore:distutils Version classes are deprecated"),
            *("-W", "ignore:__array__ implementation doesn't accept a copy keyword"),
            *("-m", "rainbow_tf.export"),
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )


def load(folder, signature, **inputs):
    model = tf.saved_model.load(str(folder))
    outputs = model.signatures[signature](**{k: tf.constant(v) for k, v in inputs.items()})
    return {name: output.numpy() for name, output in outputs.items()}


def test_the_command_exports_the_best_weights(cartpole, run_dir, tmp_path):
    result = run_export(f"--run_dir={run_dir}", f"--output_dir={tmp_path / 'models'}")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    folder = tmp_path / "models" / "1"
    assert str(folder) in result.stdout
    facts = load(folder, "metadata", query=np.int32([0]))
    assert (facts["frames_trained"], facts["score"]) == (4_000, 20.5)
    assert facts["score_protocol"] == b"500 steps"
    observations = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    values = load(folder, "serving_default", observations=observations)["q_values"]
    probs = tf.nn.softmax(cartpole[0](observations[:, None])).numpy()
    np.testing.assert_allclose(values, probs @ make_support(CARTPOLE), rtol=1e-5)


@pytest.mark.parametrize("number", [None, 1])
def test_a_checkpoint_is_exported(cartpole, run_dir, tmp_path, number):
    arrays = values(named("online", cartpole[0].variables))
    store = CheckpointStore(run_dir / CHECKPOINTS)
    store.write(state={"frames": 777}, new={AGENT_FILE: lambda: arrays}, old={})
    config = dataclasses.replace(CARTPOLE, run_dir=str(run_dir))
    export = export_run(config, tmp_path / "m", is_best=False, checkpoint=number)
    facts = load(export.folder, "metadata", query=np.int32([0]))
    assert facts["frames_trained"] == 777
    assert np.isnan(facts["score"])
    observations = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    answers = load(export.folder, "serving_default", observations=observations)
    probs = tf.nn.softmax(cartpole[0](observations[:, None])).numpy()
    np.testing.assert_allclose(answers["probabilities"], probs, rtol=1e-5)


def test_an_output_that_cannot_be_written_is_one_sentence(cartpole, tmp_path):
    network, settings = cartpole
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/models cannot be written"):
        export_policy(network, output_dir=tmp_path / "file" / "models", **settings)


def test_a_full_disk_is_one_sentence(cartpole, tmp_path, monkeypatch):
    def full(*arguments):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    network, settings = cartpole
    monkeypatch.setattr(saved_model, "write_model", full)
    with pytest.raises(ConfigError, match="No space left"):
        export_policy(network, output_dir=tmp_path, **settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("prepare", "arguments", "named"),
    [
        (None, ["--run_dir={run}"], ["--output_dir"]),
        (None, ["--output_dir={out}"], ["--run_dir"]),
        (None, ["qbert"], ["'qbert' is not a flag"]),
        (None, ["--run_dir={run}/best", "--output_dir={out}"], ["--run_dir", "config.json"]),
        (
            None,
            ["--run_dir={run}", "--output_dir={out}", "--snapshot=best", "--checkpoint=3"],
            ["--checkpoint", "--snapshot=best"],
        ),
        (
            None,
            ["--run_dir={run}", "--output_dir={out}", "--noisy", "--tflite"],
            ["--noisy", "--tflite"],
        ),
        (
            lambda run: (run / "config.json").write_text(CONFIGS["cartpole_dqn"].to_json()),
            ["--run_dir={run}", "--output_dir={out}", "--noisy"],
            ["--noisy", "no noisy layers"],
        ),
        (
            lambda run: (run / "config.json").write_text("damaged"),
            ["--run_dir={run}", "--output_dir={out}"],
            ["config.json"],
        ),
        (
            lambda run: (run / "best" / "online.npz").unlink(),
            ["--run_dir={run}", "--output_dir={out}"],
            ["no best weights", "--snapshot=latest"],
        ),
        (
            lambda run: (run / "best" / "online.npz").write_bytes(b"damaged"),
            ["--run_dir={run}", "--output_dir={out}"],
            ["online.npz", "--snapshot=latest"],
        ),
        (
            None,
            ["--run_dir={run}", "--output_dir={out}", "--checkpoint=7"],
            ["holds no whole checkpoint", "--checkpoint"],
        ),
    ],
)
def test_bad_input_is_one_sentence(run_dir, tmp_path, prepare, arguments, named):
    if prepare is not None:
        prepare(run_dir)
    output = tmp_path / "out"
    result = run_export(*(text.format(run=run_dir, out=output) for text in arguments))
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for part in named:
        assert part in result.stderr
    assert not output.exists(), "a refused export leaves nothing behind"
