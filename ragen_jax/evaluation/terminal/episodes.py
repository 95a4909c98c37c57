"""One episode of the policy, of the solver, or of a person who writes replies.

In: a task, the number of a level, the player. Out: the episode. The turns are those of
the rollout; only the replies differ. In an array game a person reads the exact text
that the model reads (`by_hand` is for play without it), in a host game what the game
shows.
"""

import asyncio
import base64
import contextlib
import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from envs.base import NO_FACTS, TextEnvironment
from ragen_jax import rngs
from ragen_jax.evaluation.load import Trained
from ragen_jax.evaluation.players import SOLVER_DISCOUNT
from ragen_jax.evaluation.terminal.scenes import describe_end
from ragen_jax.rollout import demonstrators
from ragen_jax.rollout.collect import play_episodes
from ragen_jax.rollout.host.loop import SILENT, TokenEpisodes, TokenGame, play_turns
from ragen_jax.rollout.host.rows import Pool, WorkerResponse, draw_problems, play_rows
from ragen_jax.rollout.keys import RolloutKeys
from ragen_jax.rollout.turns import Play, RolloutContext
from ragen_jax.tasks.task import Task
from ragen_jax.text import chat
from ragen_jax.types import Reply, Trajectory


def level_keys(trained: Trained, level: int) -> RolloutKeys:
    """Random keys of one episode on the numbered validation level.

    Level 0 is the first prompt of an evaluation, 1 the second, and so on.
    """
    seed = trained.config.evaluation.seed
    root = rngs.stream(rngs.root_key(seed), "evaluation")
    return RolloutKeys(
        *(
            jax.random.fold_in(rngs.stream(root, name), level)[None]
            for name in ("level", "noise", "sample")
        ),
        is_held_out=jax.device_put(np.ones(1, bool)),
    )


def watch_policy(trained: Trained, level: int) -> Trajectory:
    """The policy's episode on a level, by the program of the evaluations."""
    task, temperature = trained.program.task, trained.config.evaluation.temperature
    collect = task.validation.collect.for_evaluation(1, temperature)
    return collect(trained.params, task.dialogue, level_keys(trained, level))


def watch_solver(trained: Trained, level: int) -> Trajectory:
    """The exact solver's episode on a level.

    It thinks where everything is, if the game says how that is stated.
    """
    task = trained.program.task
    has_facts = type(task.env).facts is not TextEnvironment.facts
    thought = demonstrators.READING if has_facts else demonstrators.NONE
    always_best = demonstrators.Mixture(
        shares=jnp.ones(1),
        thoughts=jnp.array([thought]),
        noise=jnp.zeros(1),
        redraw=jnp.float32(0),
    )
    facts = task.env.facts() if has_facts else NO_FACTS
    replies = demonstrators.compile_replies(
        task.env,
        task.tokenizer,
        facts,
        task.rules.budget,
        tokenization=trained.config.prompt.tokenization,
        thinking=task.dialogue.thinking,
    )
    responder = demonstrators.build_responder(
        task.env,
        task.params,
        replies,
        always_best,
        facts=facts,
        rules=task.rules,
        discount=SOLVER_DISCOUNT,
    )

    @jax.jit
    def watch(dialogue, keys):
        return play_episodes(
            task.env,
            task.params,
            dialogue,
            responder,
            keys,
            rules=dataclasses.replace(task.rules, bonus=None),
        )

    return watch(task.dialogue, level_keys(trained, level))


def complete_reply(line: str, *, thinking: bool, end: str = chat.END) -> str:
    """A typed line in the form of the model's replies.

    A bare answer ("Up || Left") gets the tags; a line with tags is taken as it is.
    `end` is the end-of-turn token.
    """
    if "<" not in line:
        thought = "</think><answer>" if thinking else ""
        line = f"{thought}{line.strip()}</answer>"
    return line + end


def play(
    task: Task,
    keys: RolloutKeys,
    *,
    read_line: Callable[[], str],
    say: Callable[[str], None],
) -> Trajectory:
    """Play one episode (one row of `keys`) from the terminal.

    Raises:
      EOFError: from `read_line`, at the end of the input.
    """
    rules = dataclasses.replace(task.rules, bonus=None)
    game = TokenGame(
        rules,
        lambda params, dialogue: RolloutContext(
            task.env, task.params, dialogue, SILENT, rules
        ),
    )
    episodes = TokenEpisodes(game, (), task.dialogue, keys)

    async def ask(turn: int, play: Play) -> tuple[Play, Reply]:
        if turn:
            say(_outcome(play, turn - 1))
        message = play.transcript.turn_index[0] == turn
        say(task.tokenizer.decode(np.asarray(play.transcript.tokens[0])[message]))
        return play, _typed_reply(task, read_line, say)

    trajectory = asyncio.run(play_turns(episodes, ask))
    play = episodes.play
    say(_outcome(play, int(jnp.sum(play.turns.played)) - 1))
    state = jax.tree.map(lambda x: x[0], play.states)
    say(f"\n{task.env.render(state, task.params)}")
    return trajectory


def _outcome(play: Play, turn: int) -> str:
    record = jax.tree.map(lambda x: x[0, turn], play.turns)
    return (
        f"\n[{int(record.num_executed)} actions run, reward {record.reward:g}, "
        f"penalty {record.penalty:g}]"
    )


def _typed_reply(
    task: Task, read_line: Callable[[], str], say: Callable[[str], None]
) -> Reply:
    max_tokens = task.rules.max_reply_tokens
    while True:
        dialogue = task.dialogue
        end = dialogue.prompts.markup.end
        # A terminal's bytes that are not UTF-8 come as lone surrogates.
        typed = read_line().encode(errors="replace").decode()
        line = complete_reply(typed, thinking=dialogue.thinking, end=end)
        tokens = task.tokenizer.encode(line)
        if len(tokens) <= max_tokens:
            break
        say(
            f"[the reply has {len(tokens)} tokens, {max_tokens} are allowed; "
            "write a shorter one]"
        )
    padded = np.zeros((1, max_tokens), np.int32)
    padded[0, : len(tokens)] = tokens
    return Reply(
        tokens=jnp.asarray(padded),
        log_probs=jnp.zeros((1, max_tokens)),
        length=jnp.asarray([len(tokens)], jnp.int32),
        is_cut=jnp.zeros(1, bool),
    )


# `(pool, output) -> reply` of a player of a host game.
Player = Callable[[Pool, WorkerResponse], str]


def play_host_game(
    trained: Trained, level: int, player: Player, say: Callable[[str], None]
) -> None:
    """One episode of a host game, within the rollout's limit on turns.

    Raises:
      EOFError: the player leaves.
      ValueError: the game failed.
    """
    task = trained.program.task
    env, keys = task.env, level_keys(trained, level)
    problem = draw_problems(keys, env.num_tasks[keys.split])
    say(f"{env.name}, level {level}\n{env.instruction}\n")

    def show(outputs: Sequence[WorkerResponse]) -> None:
        last = _checked(outputs[-1])
        if len(outputs) > 1:
            say(f"[reward {last.reward:g}]")
        say(_as_text(last))

    def reply(episodes: Mapping[int, Sequence[WorkerResponse]]) -> dict[int, str]:
        show(episodes[0])
        return {0: player(pool, episodes[0][-1])}

    with contextlib.closing(Pool(env.spec, keys.split, reads_images=True)) as pool:
        max_turns = task.rules.budget.max_turns
        (outputs,) = play_rows(pool, *problem, reply, max_turns)
    show(outputs)
    total = sum(output.reward for output in outputs)
    say(describe_end(outputs[-1].success, len(outputs) - 1, total))


def solver_of(trained: Trained, say: Callable[[str], None]) -> Player:
    """Replies from the game's solution.

    The player raises ValueError where the game has none.
    """

    def solve(pool: Pool, output: WorkerResponse) -> str:
        replies = _checked(pool.solve([0])[0]).solution
        if not replies:
            raise ValueError(
                f"{trained.program.task.env.name} has no replies that win from here "
                "(`solution` is empty)"
            )
        say(f"> {replies[0]}")
        return replies[0]

    return solve


def say_policy_episode(
    trained: Trained, level: int, say: Callable[[str], None]
) -> None:
    """The policy's episode of a host game, with the text that it reads."""
    (record,) = trained.program.task.records(watch_policy(trained, level))
    for turn in record["turns"]:
        say(f"{turn['observation']}{turn['reply']}")
        say(f"[reward {turn['reward']:g}, penalty {turn['penalty']:g}]")
    total = record["return"] + record["penalty"]
    say(describe_end(record["success"], len(record["turns"]), total))


def _checked(output: WorkerResponse) -> WorkerResponse:
    if output.failure is not None:
        raise ValueError(f"the game failed: {output.failure}")
    return output


def _as_text(output: WorkerResponse) -> str:
    """The observation as text; an image is printed as its size."""
    text = output.text
    for image in output.images:
        with Image.open(io.BytesIO(base64.b64decode(image))) as picture:
            text += f"\n[image, {picture.width} x {picture.height}]"
    return text
