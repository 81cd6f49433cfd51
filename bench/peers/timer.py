"""The CUDA-graph timer of bench/cuda/timer.cpp, for calls that allocate through torch."""

import contextlib
import pathlib
import statistics
import traceback

_abandoned = []  # graphs whose capture failed: torch's allocators may still point at them


class CannotCapture(RuntimeError):
    """A CUDA graph cannot hold the call."""


class GraphTimer:
    """One call per buffer set in one graph. torch captures it, not tandem_bench_time: what a peer allocates during a
    capture must come from the graph's own pool. The method is the same for every provider, Tandem included."""

    def __init__(self, calls):
        import torch

        self._torch = torch
        self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for call in calls:
                call()
            self._stream.synchronize()
            self._refuse_waits(calls)
        self._stream.synchronize()
        self._bodies = calls  # kept: the graph reads inputs that only they hold
        self._calls = len(calls)
        self._graph = torch.cuda.CUDAGraph()
        self._capture(calls)

    def _refuse_waits(self, calls):
        """A call that waits for the device would end the capture, and a failed capture is hard to
        clean up after: torch finds such calls beforehand."""
        cuda = self._torch.cuda
        before = cuda.get_sync_debug_mode()
        try:
            cuda.set_sync_debug_mode("error")
            for call in calls:
                call()
        except RuntimeError as error:
            if "synchronizing CUDA operation" not in str(error):
                raise
            at = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{pathlib.Path(at.filename).name}:{at.lineno}"
        else:
            return
        finally:
            cuda.set_sync_debug_mode(before)
        eager = f"about {self._eager(calls):.4g} us per call without a graph"
        wait = f"waits for the device in every call ({place}), which no graph can hold"
        raise CannotCapture(f"{wait}; {eager}")

    def _eager(self, calls):
        """Microseconds per call, launches and waits included."""
        return statistics.median(self._timed(lambda: [call() for call in calls], 5)) / len(calls)

    def _timed(self, body, times):
        """Microseconds of each run of `body` on the current stream."""
        cuda = self._torch.cuda
        events = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
        for start, end in events:
            start.record()
            body()
            end.record()
        cuda.current_stream().synchronize()
        return [1e3 * start.elapsed_time(end) for start, end in events]

    def _capture(self, calls):
        cuda = self._torch.cuda
        pool = cuda.graph_pool_handle()
        try:
            # The outer context restores the stream, which a failed capture does not in every torch.
            with cuda.stream(self._stream), cuda.graph(self._graph, pool=pool, stream=self._stream):
                # Kept: outputs that share memory would stay in the L2.
                self.outputs = [call() for call in calls]
        except Exception as error:
            self._abandon(pool)
            cause = error.__context__ or error  # the call's own, not that of ending the capture
            text = f"the capture of a CUDA graph failed: {type(cause).__name__}: {cause}"
            raise CannotCapture(text) from error

    def _abandon(self, pool):
        """Where ending the capture fails, torch leaves its allocator as if the capture went on: it
        would then never give memory back, and later peers would run out of it."""
        device = self._torch.cuda.current_device()
        _abandoned.append(self._graph)
        with contextlib.suppress(Exception):
            self._torch._C._cuda_endAllocateToPool(device, pool)  # raises where torch came this far
            self._torch._C._cuda_releasePool(device, pool)
        self.close()

    def replay(self, warm_up, replays):
        """Microseconds per call, one sample per replay."""
        with self._torch.cuda.stream(self._stream):
            for _ in range(warm_up):
                self._graph.replay()
            return [us / self._calls for us in self._timed(self._graph.replay, replays)]

    def restart(self):
        """Where calls update a tensor in place (and have a `restart` that puts it back): one replay from the start, so
        that what is there is of one call, as at the first."""
        restarts = [body.restart for body in self._bodies if hasattr(body, "restart")]
        for restart in restarts:
            restart()
        if restarts:
            self._torch.cuda.synchronize()
            self.replay(0, 1)

    def close(self):
        self.outputs = []
        self._bodies = []
        with contextlib.suppress(Exception):
            self._graph.reset()
