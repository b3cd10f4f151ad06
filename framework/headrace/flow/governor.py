"""The governor: the controller that adapts the number of actors of a consumer, between the limits that
you set.

It climbs the hill of throughput by trials. A trial is a window of time with more or fewer actors,
which is compared with the window before it. By Little's law (L = λW, busy actors = throughput times
latency) both figures come from counters. If a tenth more actors finish a tenth more messages, the
latency has not changed. If they finish as many as before, the latency has grown by that tenth. The
criterion is the elasticity, the relative gain in throughput divided by the relative gain in actors.
It is 1 where handlers only wait, 0 where the processor or the downstream is the limit, and below 0
where that is overloaded. More actors are kept only if their elasticity is at least `WORTH`.
Otherwise fewer actors do as well.

    start ──▶ double ──▶ … ──▶ lost: back ──▶ smaller steps, up and down by turns ──▶ rest ──▶ try again
                                                              ▲                          │
                                                              └── throughput changed ◀───┘

After T. Hellerstein et al., "Optimizing Concurrency Levels in the .NET ThreadPool" (2008), which is
hill climbing on measured throughput with paired comparisons. The doubling at the start is that of
TCP (Jacobson, "Congestion Avoidance and Control", 1988). Judging by throughput and latency together
is that of Vegas (Brakmo and Peterson, 1995). Unlike Vegas it doesn't use the lowest latency ever
seen. Both sides of a comparison are only seconds old, so that it follows a downstream that changes.
A lost trial is repeated if the throughput of the window that it was compared with turns out to have
dropped, too. Then something else was the cause.

A window has a fixed length. One that lasts until the difference is certain picks the extremes, and did worse in
simulations.

When hardly any call ends any more, the downstream may hang, or the calls may only take longer. So the
actors are halved, and each time it waits twice as long as before. When as many calls have ended as
there were, it is known how long they take now. So it can wait for them, measure, and climb again.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

from headrace.model.watching.reasons import Reason

INTERVAL = 0.1
"""Seconds between samples."""

WORTH = 0.15
"""The elasticity from which more actors are kept."""

ROUNDS, FEW_ROUNDS = 8, 3
"""A window lasts until each actor has ended `ROUNDS` calls on average. `FEW_ROUNDS` are enough if that
takes `LONG` seconds."""

SHORT, LONG = 0.2, 1.0
"""Bounds of the length of a window in seconds, if it has enough rounds. It is twice as long for a
small step, since the difference is small."""

STEPS = (2.0, 1.15)
"""The largest and the smallest step, as a factor."""

AGAIN = 1.5
"""The first step after a lull, a pause or a changed limit, as a factor."""

RESTS = (2.0, 8.0)
"""Rest at the top of the hill in seconds, at first and at most."""

CHANGED = 1.3
"""The factor of a change in throughput that ends a rest."""

LULL = 3.0
"""Time in seconds after which actors are removed if at least half of them had nothing to do."""

STOP_MEMORY, SHRINK_MEMORY = 0.8, 0.9
"""Shares of memory in use at which no actors are added, and at which actors are removed."""

REMEMBERED = 16
"""Number of decisions kept in the history."""


class Sample(msgspec.Struct, frozen=True):
    """Measurements since the last sample.

    Args:
        finished: messages finished.
        busy: actors that work on a lane now.
        ready: lanes that wait for an actor now.
        waiting: messages that wait, for an actor or behind another message of their key.
        starved: how often an actor found no lane.
        memory: the share of its memory that the process uses, if that is known.
        calls: calls of the handler that ended, if each takes many messages. None if each takes one.
    """

    finished: int
    busy: int
    ready: int
    waiting: int
    starved: int = 0
    memory: float | None = None
    calls: int | None = None


class Decision(msgspec.Struct, frozen=True):
    """How many actors there should be, and why.

    Args:
        actors: the number of actors.
        reason: why it was decided.
        at: when, on the caller's clock.
        rate: messages per second measured before the decision.
        latency: seconds per call of the handler measured before the decision.
    """

    actors: int
    reason: Reason
    at: float = 0.0
    rate: float | None = None
    latency: float | None = None


class Window(msgspec.Struct):
    """The messages that a number of actors, all busy, finished in some time."""

    actors: int
    settling: bool = True  # the first round still contains messages from before
    finished: int = 0
    calls: int = 0  # the calls that these were in
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.finished / self.seconds if self.seconds > 0 else 0.0

    @property
    def rounds(self) -> float:
        """How many calls each actor has ended on average."""
        return self.calls / self.actors


class Doubt(msgspec.Struct):
    """Whether calls hang or only take longer, since hardly any of them ended.

    Args:
        calls: how many there were then.
        patience: how many times as long as expected a window may take now.
        ended: how many have ended since.
        worked: seconds that actors have worked since, all together.
    """

    calls: int
    patience: int = 1
    ended: int = 0
    worked: float = 0.0


class Governor:
    """Decides the number of actors from samples, between `low` and `high`. If both are equal it never
    changes.

    Args:
        now: seconds, monotonic.
    """

    def __init__(self, low: int, high: int, *, now: float = 0.0) -> None:
        self.low, self.high = low, high
        self.decision = Decision(low, Reason.of("minimum" if low < high else "fixed"), now)
        self.history: deque[Decision] = deque([self.decision], REMEMBERED)
        self._then: float | None = None
        self._rate: float | None = None  # the last measurement
        self._latency: float | None = None
        self._expected: float | None = None  # the latency, as far as it is known
        self._confirmed = False  # whether it was measured since there was no work
        self._doubt: Doubt | None = None
        self._window = Window(low)
        self._peak, self._peak_since = 0, 0.0
        self._fresh(STEPS[0])

    def _fresh(self, step: float) -> None:
        """Forget all measurements, and begin with this step."""
        self._window = Window(self.decision.actors)
        self._base: Window | None = None  # the window that a trial is compared with
        self._lost: Window | None = None  # the last trial that was lost
        self._trial = False
        self._up = True
        self._step = step
        self._losses = 0  # in a row
        self._rest, self._rest_until = RESTS[0], 0.0

    def decide(self, now: float, sample: Sample, *, most: int | None = None) -> Decision:
        """Return the next decision, after one more sample.

        Args:
            now: seconds, monotonic.
            most: another bound on the actors, such as the number of database connections.
        """
        seconds, self._then = 0.0 if self._then is None else now - self._then, now
        if self.low < self.high:
            high = max(self.low, self.high if most is None else min(self.high, most))
            self._judge(now, seconds, sample, high)
        return self.decision

    def pause(self) -> None:
        """Pause while consumers of higher priority limit the actors. Measurements during that time
        mean nothing."""
        self._then = None
        self._fresh(AGAIN)

    def resume(self) -> None:
        """Resume after a time without work, in which no sample was taken. Calls may take much longer now."""
        self._then = self._doubt = None
        self._confirmed = False

    # --- what is seen

    def _judge(self, now: float, seconds: float, sample: Sample, high: int) -> None:
        actors = self.decision.actors
        if sample.memory is not None and sample.memory >= SHRINK_MEMORY and actors > self.low:
            self._fresh(AGAIN)
            self._change(now, max(self.low, actors * 3 // 4), Reason.of("memory", sample.memory))
        elif actors > high:
            self._fresh(AGAIN)
            self._change(now, high, Reason.of("maximum", high))
        elif not self._full(sample):
            self._slack(now, sample)
        else:
            self._peak, self._peak_since = sample.busy, now
            self._watch(now, seconds, sample, high)

    def _full(self, sample: Sample) -> bool:
        """Whether all actors were busy nearly all the time, and more messages waited."""
        return (
            sample.waiting > 0
            and sample.busy * 10 >= self.decision.actors * 9
            and sample.starved * 10 <= sample.finished
        )

    def _slack(self, now: float, sample: Sample) -> None:
        """Handle a sample with more actors than work. Their number limits nothing, so some are removed
        if that lasts."""
        if self._base is not None or self._window.seconds or self._trial:
            self._fresh(AGAIN)
        self._peak = max(self._peak, sample.busy)
        if now - self._peak_since >= LULL:
            actors, peak = self.decision.actors, self._peak
            self._peak, self._peak_since = sample.busy, now
            if peak * 2 <= actors and actors > self.low:
                self._fresh(AGAIN)
                self._change(now, max(self.low, math.ceil(peak * 1.5)), Reason.of("idle", peak))

    def _watch(self, now: float, seconds: float, sample: Sample, high: int) -> None:
        window = self._window
        window.seconds += seconds
        calls = sample.finished if sample.calls is None else min(sample.calls, sample.finished)
        window.finished += sample.finished
        window.calls += calls
        if self._doubt is not None:
            self._learn(self._doubt, calls, sample.busy * seconds)
        if sample.busy > window.actors:  # surplus actors still work, so this does not measure the decided number yet
            window.settling, window.finished, window.calls = True, 0, 0
        if window.settling:
            if window.rounds >= 1:
                self._window = Window(window.actors, settling=False)
            elif window.seconds >= LONG and not sample.finished:
                self._stalled(now, sample, high)
        elif self._long_enough(window):
            self._doubt, self._confirmed = None, True
            self._rate, self._latency = window.rate, window.seconds / window.rounds
            self._expected = self._latency
            self._measured(now, window, sample, high)
        elif window.seconds >= LONG:
            self._stalled(now, sample, high)

    def _long_enough(self, window: Window) -> bool:
        twice = 1 if self._step >= AGAIN else 2
        if window.rounds >= ROUNDS and window.seconds >= SHORT * twice:
            return True
        return window.rounds >= FEW_ROUNDS and (window.seconds >= LONG * twice or self._plainly_lost(window))

    def _plainly_lost(self, window: Window) -> bool:
        """Whether a trial with more actors finishes clearly less. Then it ends early, because a
        downstream is overloaded."""
        return self._trial and self._up and self._base is not None and 0 < window.rate * CHANGED**0.5 < self._base.rate

    # --- what follows from it

    def _stalled(self, now: float, sample: Sample, high: int) -> None:
        """React to a window in which hardly anything was finished."""
        actors, window, doubt = self.decision.actors, self._window, self._doubt or Doubt(sample.busy)
        late = window.seconds >= (LONG + 2 * ROUNDS * (self._expected or 0.0)) * doubt.patience
        if late and not window.calls and not self._confirmed:
            self._expected = None
        if self._expected is None:
            few = "few_finished" if window.calls or not window.settling else "none_finished"
            self._move(now, actors * 2, sample, high, few)
        elif late and actors > self.low:
            doubt.patience *= 2
            self._doubt = doubt
            self._fresh(STEPS[0])
            fewer = max(self.low, actors // 2)
            self._up = fewer == self.low
            self._change(now, fewer, Reason.of("stalled"))

    def _learn(self, doubt: Doubt, calls: int, worked: float) -> None:
        """Learn how long calls take, when all that were in doubt have ended, or others instead of them."""
        doubt.ended += calls
        doubt.worked += worked
        if doubt.ended >= doubt.calls and self._expected is not None:
            self._expected = max(self._expected, doubt.worked / doubt.ended)

    def _measured(self, now: float, window: Window, sample: Sample, high: int) -> None:
        """Judge the trial that a full window completes. If it was no trial, decide what to try next."""
        base, self._window = self._base, Window(window.actors, settling=False)
        if self._trial and base is not None:
            self._trial = False
            if self._better(base, window):
                self._won(now, base, window, sample, high)
            else:
                self._lose(now, base, window)
            return
        self._base, lost, self._lost = window, self._lost, None
        if lost is not None and self._better(window, lost):
            self._up, self._losses = lost.actors > window.actors, max(0, self._losses - 1)
            self._try(now, lost.actors, sample, high)
        elif base is not None and not 1 / CHANGED < window.rate / base.rate < CHANGED:
            # The conditions have changed, and the window contains both sides of the change. Measure
            # once more, then continue as if starting here.
            self._up, self._step, self._losses = window.rate > base.rate, STEPS[0], 0
            self._base, self._rest, self._rest_until = None, RESTS[0], now
        elif now >= self._rest_until:
            self._probe(now, sample, high)

    @staticmethod
    def _better(base: Window, trial: Window) -> bool:
        elasticity = math.log(trial.rate / base.rate) / math.log(trial.actors / base.actors)
        return elasticity >= WORTH if trial.actors > base.actors else elasticity < WORTH

    def _won(self, now: float, base: Window, window: Window, sample: Sample, high: int) -> None:
        """Keep the tried number, and continue in the same direction."""
        self._note(now, window.actors, _verdict(base, window, kept=True))
        self._base = window
        if not self._losses:
            self._step = min(STEPS[0], self._step**1.5)
        self._losses, self._rest = 0, RESTS[0]
        self._probe(now, sample, high)

    def _lose(self, now: float, base: Window, window: Window) -> None:
        """Return to the number before, and turn to the other direction with a smaller step."""
        self._lost, self._base = window, None
        self._change(now, base.actors, _verdict(base, window, kept=False))
        self._losses += 1
        self._turn()

    def _turn(self) -> None:
        self._up = not self._up
        self._step = max(STEPS[1], math.sqrt(self._step))

    def _probe(self, now: float, sample: Sample, high: int) -> None:
        """Begin the next trial. Rest if both directions have lost with the smallest step."""
        for _ in range(2):
            actors = self.decision.actors
            step = max(1, round(actors * (self._step - 1) if self._up else actors * (1 - 1 / self._step)))
            if self._losses < 2 or self._step > STEPS[1]:
                if self._try(now, actors + step if self._up else actors - step, sample, high):
                    return
                self._losses += 1  # there is no trial in that direction
                self._turn()
        if self._losses >= 2 and self._step <= STEPS[1]:
            self._rest_until, self._losses = now + self._rest, 0
            self._rest = min(self._rest * 2, RESTS[1])

    def _try(self, now: float, actors: int, sample: Sample, high: int) -> bool:
        """Begin a trial with about this many actors. Returns whether that is possible."""
        self._trial = self._move(now, actors, sample, high, "trying_more" if self._up else "trying_fewer")
        return self._trial

    def _move(self, now: float, actors: int, sample: Sample, high: int, code: str) -> bool:
        before = self.decision.actors
        if actors > before:
            if sample.memory is not None and sample.memory >= STOP_MEMORY:
                self._note(now, before, Reason.of("memory_full", sample.memory))
                return False
            actors = min(actors, high, before + sample.ready)
        actors = max(actors, self.low)
        if actors != before:
            self._change(now, actors, Reason.of(code))
        return actors != before

    def _change(self, now: float, actors: int, reason: Reason) -> None:
        self._note(now, actors, reason)
        self._window = Window(actors)

    def _note(self, now: float, actors: int, reason: Reason) -> None:
        if (actors, reason) != (self.decision.actors, self.decision.reason):
            self.decision = Decision(actors, reason, now, self._rate, self._latency)
            self.history.append(self.decision)


def _verdict(base: Window, trial: Window, *, kept: bool) -> Reason:
    """Say what a trial has shown, in few words, since they are a cell of a table."""
    step = abs(trial.actors - base.actors)
    tried = "more" if trial.actors > base.actors else "fewer"
    return Reason.of(f"{tried}_{'kept' if kept else 'undone'}", "one" if step == 1 else step)
