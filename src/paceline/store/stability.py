"""How large a learning rate a delay allows, and a watch that says when it comes near."""

from __future__ import annotations

import math

from paceline.errors import InvalidArgument


def last_stable_rate(delay: float, curvature: float = 1.0) -> float:
    """Returns the learning rate below which delayed gradient descent is stable.

    w <- w - rate * curvature * (w of `delay` updates ago) shrinks exactly when

        0 < rate * curvature < 2 sin(pi / (2 (2 * delay + 1)))

    that is 2, 1, 0.4450, 0.2091 and 0.0499 for delays of 0, 1, 3, 7 and 31. Asynchronous training
    with n equal workers has a delay of n - 1.

    Args:
        delay: updates between a read and the update made from it; a mean staleness may be
            fractional.
        curvature: the largest eigenvalue of the Hessian.

    Raises:
        InvalidArgument: a negative delay, or a curvature that isn't positive.

    References:
        Levin and May, "A note on difference-delay equations", Theoretical Population Biology 9,
        1976.
    """
    if not (0 <= delay < math.inf and 0 < curvature < math.inf):
        raise InvalidArgument(
            "A delay is 0 or more, a curvature is positive, and both are finite. Received: "
            f"delay={delay!r}, curvature={curvature!r}."
        )
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1))) / curvature


class StabilityWatch:
    """Says once when the learning rate comes near what the measured staleness allows.

    A pure machine: it is told of pushes and answers at most one sentence. Means run over the last
    `window` pushes, about.

    The curvature comes from outside, or from secants: dw the difference of two reads of the
    weights by one worker, dg that of its two gradients. sum(dw.dg) / sum(dw.dw) is the curvature
    along the path, which oscillation turns towards the steepest direction. Take both gradients on
    one batch where that can be had. On different batches their noise raises the estimate: dw holds
    the noise of the first gradient, which was applied in between. With delay d this adds up to
    about 1 / (rate * (d + 1)), which alone stays below 0.64 of the limit and so says nothing, but
    makes the watch speak earlier.

    The limit holds for gradient descent. For another optimizer give the rate at which its steps
    follow the gradient, such as -(step.g) / (g.g).

    Args:
        margin: share of the last stable rate from which it speaks.
        window: over about how many pushes it averages.
        warm_up: pushes, and estimates of the curvature, that it needs before it judges.

    Attributes:
        mean_staleness: over the window.
        mean_rate: of the learning rates given.
        effective_rate: mean of rate * scale.

    Raises:
        InvalidArgument: a margin that isn't positive, a window or warm-up below 1.
    """

    __slots__ = (
        "_margin",
        "_mean_product",
        "_mean_square",
        "_num_pushes",
        "_num_secants",
        "_warm_up",
        "_was_said",
        "_window",
        "effective_rate",
        "mean_rate",
        "mean_staleness",
    )

    def __init__(self, *, margin: float = 0.8, window: int = 200, warm_up: int = 16) -> None:
        if not (0 < margin < math.inf and window >= 1 and warm_up >= 1):
            raise InvalidArgument(
                "A watch needs a positive margin and a window and warm-up of 1 or more pushes. "
                f"Received: margin={margin!r}, window={window!r}, warm_up={warm_up!r}."
            )
        self._margin, self._window, self._warm_up = margin, window, warm_up
        self._num_pushes = self._num_secants = 0
        self._mean_square = self._mean_product = 0.0
        self._was_said = False
        self.mean_staleness = self.mean_rate = self.effective_rate = 0.0

    @property
    def curvature(self) -> float | None:
        """The curvature as estimated so far; None where none was given or it isn't positive."""
        if self._mean_square <= 0 or self._mean_product <= 0:
            return None
        return self._mean_product / self._mean_square

    @property
    def last_stable_rate(self) -> float | None:
        """The last stable rate for what was measured; None where the curvature is unknown."""
        curvature = self.curvature
        return None if curvature is None else last_stable_rate(self.mean_staleness, curvature)

    def observe(
        self,
        staleness: float,
        rate: float,
        *,
        scale: float = 1.0,
        curvature: float | None = None,
        secant: tuple[float, float] | None = None,
    ) -> str | None:
        """Takes in one applied push and returns a warning, once, or None.

        Numbers that aren't finite are left out: a run that has already blown up teaches nothing.

        Args:
            staleness: of the push.
            rate: the learning rate when it was applied.
            scale: what the update rule left of the step, `UpdateRule.effective_scale`.
            curvature: an estimate of the largest curvature, where the caller has one.
            secant: `(dw.dw, dw.dg)` instead, from pushes where it was measured.
        """
        if math.isfinite(staleness) and math.isfinite(rate * scale):
            self._num_pushes += 1
            part = 1 / min(self._num_pushes, self._window)
            self.mean_staleness += (staleness - self.mean_staleness) * part
            self.mean_rate += (rate - self.mean_rate) * part
            self.effective_rate += (rate * scale - self.effective_rate) * part
        if secant is not None and self._num_pushes <= 3 * self.mean_staleness:
            # Until all workers have pushed twice, reads lie fewer steps apart than they will, and
            # the noise of the gradients would count for more than the delay allows for.
            secant = None
        if secant is None and curvature is not None:
            secant = (1.0, curvature)
        if secant is not None and math.isfinite(secant[0]) and math.isfinite(secant[1]):
            self._num_secants += 1
            part = 1 / min(self._num_secants, self._window)
            self._mean_square += (secant[0] - self._mean_square) * part
            self._mean_product += (secant[1] - self._mean_product) * part
        if self._was_said or min(self._num_pushes, self._num_secants) < self._warm_up:
            return None
        return self._judged()

    def _judged(self) -> str | None:
        limit = self.last_stable_rate
        if limit is None or self.effective_rate < self._margin * limit:
            return None
        self._was_said = True
        return self._sentence(limit)

    def _sentence(self, limit: float) -> str:
        is_scaled = self.effective_rate < self.mean_rate
        rate = f"a learning rate of {self.mean_rate:.3g}"
        if is_scaled:
            rate += f" that the update rule scales to {self.effective_rate:.3g}"
        state = "unstable" if self.effective_rate >= limit else "close to instability"
        target = self.mean_rate * self._margin * limit / self.effective_rate
        advice = [f"lower the learning rate below {target:.3g}", "run fewer workers"]
        if not is_scaled:
            advice.insert(1, "scale steps by their staleness (StalenessScaled)")
        return (
            f"Asynchronous training is {state}: a mean staleness of "
            f"{self.mean_staleness:.1f} with {rate}, where the last stable rate is {limit:.3g} "
            f"at the measured curvature of {self.curvature:.3g}. To be safe, "
            f"{', '.join(advice[:-1])} or {advice[-1]}."
        )
