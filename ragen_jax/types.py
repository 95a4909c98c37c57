"""Every pytree that crosses a stage border, each field with shape, dtype and meaning.

Axis letters used throughout the project: `G` groups, `N` rollouts per group, `B = G*N`
rows, `K` turns, `A` actions per turn, `T` trajectory tokens, `R` reply tokens per turn,
`O` observation tokens per turn, `S` cache slots, `V` vocabulary, `W` tokens of a
window, `D` width, `H` query heads, `J` key/value heads, `F` head size, `L` layers.
"""

from typing import Any

from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

Params = Any  # a nested dict of arrays
EnvState = Any  # an environment's own state pytree
# Images that games in Python show, by the number of the game among those of a policy:
# the token of a part of one names its place here.
Images = dict[int, UInt8[Array, "N height width 3"]]

# Ids from here on, far above any real vocabulary, are cells of pictures of boards. Each
# game that shows pictures has `IDS_PER_PICTURE` of them: one for each of up to
# `ROW_END` symbols, and one for each that is the last of its row.
PICTURE_IDS = 2**24
ROW_END = 256
IDS_PER_PICTURE = 2 * ROW_END
# Ids from here on are parts of images that games in Python show, of each game
# `IDS_PER_HOST_GAME`: part `i` of image `n` of a rollout is `n * parts + i`.
HOST_PICTURE_IDS = 2**28
IDS_PER_HOST_GAME = 2**26


@struct.dataclass
class TokenSpan:
    """Ragged tokens: `tokens[..., :length]` count, the rest is padding of any value."""

    tokens: Int[Array, "... O"]
    length: Int[Array, "..."]


@struct.dataclass
class ParsedAnswer:
    """What one reply asks for, found by the parser (leading axes are the batch's).

    Attributes:
      num_names: how many names were listed, at most `A`: the rest of the reply is
        dropped without penalty.
      num_listed: how many names the reply listed in all.
      has_format: the reply holds a thought and an answer in their tags.
      names: index into the environment's action vocabulary of each listed name, -1
        where the name is unknown; entries from `num_names` on are -1. None if the game
        parses answers itself; then `texts` and `sizes` are set.
      texts: UTF-8 bytes of each listed answer, zero-padded.
      sizes: its length in bytes, which may exceed `E`; 0 from `num_names` on.
    """

    num_names: Int[Array, "..."]
    num_listed: Int[Array, "..."]
    has_format: Bool[Array, "..."]
    names: Int[Array, "... A"] | None = None
    texts: UInt8[Array, "... A E"] | None = None
    sizes: Int[Array, "... A"] | None = None


@struct.dataclass
class Reply:
    """What the model wrote in one turn.

    Attributes:
      tokens: sampled ids; the stop token, when one was sampled, is the last to count.
      log_probs: log-probability of each sampled token under the temperature-scaled,
        untruncated distribution; 0 from `length` on.
      length: tokens sampled, the stop token included; 0 for rows that did not play.
      is_cut: the length limit ended the reply; it has no stop token.
    """

    tokens: Int[Array, "B R"]
    log_probs: Float[Array, "B R"]
    length: Int[Array, " B"]
    is_cut: Bool[Array, " B"]


@struct.dataclass
class Turns:
    """One entry per row and turn.

    Attributes:
      played: the row took this turn; all other fields are 0, False or -1 where not.
      reward: sum of the environment's rewards over the turn's executed actions.
      penalty: format penalty paid (<= 0).
      bonus: paid for how the reply was written (see `ragen_jax.rollout.bonuses`).
      reply_start: index in the trajectory of the reply's first sampled token.
      reply_length: sampled tokens, stop token included.
      reply_is_cut: the length limit ended the reply.
      has_format: the reply had a thought and an answer in their tags.
      num_listed: names the reply listed in all.
      num_valid: names that are actions of the game, among the first `A` listed; of a
        host game 1 where it could read the answer.
      num_executed: actions the environment ran.
      num_effective: executed actions that changed the player's situation.
      actions: environment actions in the order executed, -1 from `num_executed` on.
      actions_left: action budget before the turn.
      state_hash: of what the game showed before the turn: equal for equal pictures, and
        for different ones only by an accident of 64 bits.
    """

    played: Bool[Array, "B K"]
    reward: Float[Array, "B K"]
    penalty: Float[Array, "B K"]
    bonus: Float[Array, "B K"]
    reply_start: Int[Array, "B K"]
    reply_length: Int[Array, "B K"]
    reply_is_cut: Bool[Array, "B K"]
    has_format: Bool[Array, "B K"]
    num_listed: Int[Array, "B K"]
    num_valid: Int[Array, "B K"]
    num_executed: Int[Array, "B K"]
    num_effective: Int[Array, "B K"]
    actions: Int[Array, "B K A"]
    actions_left: Int[Array, "B K"]
    state_hash: UInt32[Array, "B K 2"]


@struct.dataclass
class Windows:
    """What the model read and wrote, where it did not see the whole dialogue.

    A window is a text that the model saw at once: the prompt of one turn and its reply
    (`ragen_jax.text.context`), or a segment of an agent's episode, whose calls extend
    each other and which holds several replies. Each sampled token stands once in the
    trajectory, at `turns.reply_start[b, k] + i`, and once here, at
    `reply_start[b, k] + i` of row `(b, of_turn[b, k])`; `ragen_jax.algo.segments` goes
    from one to the other. Zeros where not played.

    Attributes:
      tokens: of `M` windows.
      lengths: tokens that count, prompts and replies; 0 for no window.
      reply_start: index of each turn's first sampled token; the reply's length is
        `turns.reply_length`.
      of_turn: the window that holds each turn's reply.
    """

    tokens: Int[Array, "B M W"]
    lengths: Int[Array, "B M"]
    reply_start: Int[Array, "B K"]
    of_turn: Int[Array, "B K"]


@struct.dataclass
class Trajectory:
    """Whole episodes, as sampled. Rows of a group are adjacent: row = group * N + i.

    The dialogue holds every message and reply in order, however much of it the model
    saw.

    Attributes:
      tokens: every token of the dialogue, from the first slot on without gaps.
      lengths: tokens that count, per row; the rest of `tokens` is padding.
      loss_mask: the token was sampled by the model. Everything the template or the
        environment says is False, the end-of-turn token the model sampled is True.
      turn_index: turn the token belongs to (an observation belongs to the turn whose
        reply it asks for), -1 on padding.
      sample_log_probs: the sampler's log-probability of each sampled token, else 0.
      turns: per-turn records.
      terminated: the game ended by its own rules.
      truncated: a budget (actions, turns, the game's own time limit) ended the episode.
      success: the goal of the game was reached.
      initial_state: the environment's state before the first turn (leading axis `B`);
        None where rows of several environments are joined.
      windows: what the model saw; None where it saw the whole dialogue.
      env_index: which of several environments the row played; None where there is one.
      noise_key: data of the key that the game's chance came from, with which the row
        can be played again (`ragen_jax.rollout.replay`).
      game_metrics: the last values of the numbers that a host game reports
        (`HostGame.metrics`), by name, NaN where there is none; None for other games.
      images: that host games showed in the rollout, each once; None: none shows any.
        Not an array of rows, but as easily split over devices.
    """

    tokens: Int[Array, "B T"]
    lengths: Int[Array, " B"]
    loss_mask: Bool[Array, "B T"]
    turn_index: Int[Array, "B T"]
    sample_log_probs: Float[Array, "B T"]
    turns: Turns
    terminated: Bool[Array, " B"]
    truncated: Bool[Array, " B"]
    success: Bool[Array, " B"]
    initial_state: EnvState
    windows: Windows | None = None
    env_index: Int[Array, " B"] | None = None
    noise_key: UInt32[Array, "B w"] | None = None
    game_metrics: dict[str, Float[Array, " B"]] | None = None
    images: Images | None = None
