"""The CUDA-graph timer of bench/cuda/timer.cpp, for calls that allocate through torch."""

import contextlib


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
        self._bodies = calls  # kept: the graph reads inputs that only they hold
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            # Kept: outputs that share memory would stay in the L2.
            self.outputs = [call() for call in calls]
        self._calls = len(calls)

    def replay(self, warm_up, replays):
        """Microseconds per call, one sample per replay."""
        torch = self._torch
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
        with torch.cuda.stream(self._stream):
            for _ in range(warm_up):
                self._graph.replay()
            for start, end in events:
                start.record()
                self._graph.replay()
                end.record()
        self._stream.synchronize()
        return [1e3 * start.elapsed_time(end) / self._calls for start, end in events]

    def restart(self):
        """Where calls update a tensor in place (and have a `restart` that puts it back): one replay from the start, so that
        what is there is of one call, as at the first."""
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
