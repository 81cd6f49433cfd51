"""What a provider is, and the registry: every Provider class in a file of providers/."""

import importlib
import importlib.metadata
import inspect
import pkgutil


class Provider:
    """One way to compute an op. A file in providers/ holds one or a few; nothing else names them."""

    op = "gla"
    directions = ("forward",)  # those of cases.DIRECTIONS that it can do; case.direction says which is wanted
    name = ""  # in the results file
    packages = ()  # distributions whose versions are recorded
    settings = ("",)  # tuning choices of the peer itself; the first is its default
    baseline = False  # Tandem's own, of bench/cuda: first among the peers, and its failures are ours
    same_function = True  # False: a yardstick of the same shape, not checked
    limits = {}  # {dtype: {output: largest relative RMS error}} where tighter than side_by_side.WRONG
    note = ""  # what a reader of the numbers must know; note_on(case) where it depends on the case
    lacking = {}  # {package: why}, of load(), of packages without which `directions` are fewer

    def load(self):
        """Imports what is needed. An exception says why the provider cannot be here."""

    def refusal(self, case, dtype):
        """Says why it cannot do this case, "" where it can."""
        return ""

    def note_on(self, case):
        return self.note

    def prepare(self, case, dtype, tensors, setting):
        """A call without arguments that returns the outputs of case.direction by name ({"o": [B,T,H,V]}, of a scan
        [B,T,D], of products {"out": [M,F]} or {"out0": [M,columns], ...}; of a step also "state" [B,1,H,K,V]; of a
        backward the gradients case.wants), capturable in a CUDA graph. A call that updates a tensor in place works on a
        copy of its own, and has an attribute `restart`, a function that puts the start back. Work that a user of the
        peer would not do at every call (its own layout, its own names of things) is done here, untimed."""
        raise NotImplementedError

    def variant(self, case, setting):
        return setting

    def versions(self):
        found = {}
        for package in self.packages:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                found.update(self.version_of_source(package))
        return found

    def version_of_source(self, package):
        """A package that lies on PYTHONPATH unpacked, without its metadata."""
        module = importlib.import_module(package.replace("-", "_"))
        return {package: getattr(module, "__version__", "unknown")}


def discover(op):
    """Provider objects of an op by name, Tandem first."""
    from . import providers

    found = {}
    for info in pkgutil.iter_modules(providers.__path__):
        module = importlib.import_module(f"{providers.__name__}.{info.name}")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, Provider) and kind.name and kind.__module__ == module.__name__ and kind.op == op:
                if kind.name in found:
                    raise ValueError(f"two providers are named {kind.name}")
                found[kind.name] = kind()
    return dict(sorted(found.items(), key=lambda item: (item[0] != "tandem", not item[1].baseline, item[0])))


def why_missing(error):
    return f"{type(error).__name__}: {error}"


def available(providers):
    """(those that load, why the others do not, and packages that those that load lack)."""
    ready, missing = {}, {}
    for name, provider in providers.items():
        try:
            provider.load()
            ready[name] = provider
            missing |= {f"{package} of {name}": why for package, why in provider.lacking.items()}
        except Exception as error:  # a broken install raises anything
            missing[name] = why_missing(error)
    return ready, missing
