"""Bounds on what peers take to get ready: a limit of time, and Triton's tuning on all cores."""

import concurrent.futures
import contextlib
import os
import signal


class _TimeIsUp(BaseException):
    """No Exception: what tunes a kernel takes those for a setting that does not work, and goes on."""


@contextlib.contextmanager
def limited(seconds):
    """Raises TimeoutError where the body takes longer. In the main thread; a call that does not come back to Python in
    between, of a library in C, is waited for."""

    def ring(*_):
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), 1)  # again every second, should it get lost
    try:
        yield
    except _TimeIsUp:
        raise TimeoutError(f"not ready after {seconds:.0f} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def compile_side_by_side(workers=None):
    """Lets Triton's autotuners compile all settings of a kernel in threads before they time them one after the other: a
    kernel of fla has up to 48. Which one they keep is the same. Says why, where this Triton cannot."""
    try:
        from triton.runtime import _async_compile
        from triton.runtime.autotuner import Autotuner
    except ImportError as error:
        return str(error)
    settings_of = Autotuner.prune_configs
    if getattr(settings_of, "side_by_side", False):
        return ""

    def prune_configs(self, kwargs, *rest):
        settings = settings_of(self, kwargs, *rest)
        pool = concurrent.futures.ThreadPoolExecutor(workers or os.cpu_count())
        try:
            with _async_compile.AsyncCompileMode(pool, ignore_errors=True):
                for one in settings:
                    self.fn.run(*self.nargs.values(), **{**kwargs, **one.all_kwargs(), "warmup": True})
        except Exception:  # what does not compile is found again, and told, in its turn
            pass
        finally:
            _async_compile.active_mode.set(None)  # which an exception leaves on
            pool.shutdown(wait=False, cancel_futures=True)
        return settings

    prune_configs.side_by_side = True
    Autotuner.prune_configs = prune_configs
    return ""
