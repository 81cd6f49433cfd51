"""Calls with gradients, of anything that torch can differentiate."""


def by_name(outputs):
    """The outputs of a function that returns o, or several by name."""
    return outputs if isinstance(outputs, dict) else {"o": outputs}


def leaves(case, tensors):
    """The tensors, those whose gradients are wanted as leaves of a graph of their own. No copies."""
    return {**tensors, **{name: tensors[name].detach().requires_grad_() for name in case.wants}}


def forward_backward(case, tensors, forward):
    """A call that returns the outputs of `forward`, a function of the tensors by name, and the gradients. Everything is
    made anew in each call: nothing accumulates, and autograd runs a backward on the stream of its forward, which in a
    capture must be the graph's."""
    import torch

    def call():
        inputs = leaves(case, tensors)
        with torch.enable_grad():
            outputs = by_name(forward(inputs))
        d_outputs = [tensors[f"d_{name}"] for name in outputs]
        found = torch.autograd.grad(list(outputs.values()), [inputs[name] for name in case.wants], d_outputs)
        outputs = {name: x.detach() for name, x in outputs.items()}
        return {**outputs, **dict(zip(case.wants.values(), found, strict=True))}

    return call


def backward_alone(case, tensors, forward):
    """A call of the backward only, on what one forward saved. For a `forward` that is one torch.autograd.Function of
    q, k, v and a decay: its backward() is called itself, for torch's engine would run it on the stream of the forward,
    outside of the capture."""
    import torch

    inputs = leaves(case, tensors)
    with torch.enable_grad():
        o = forward(inputs)  # kept: when it goes, so does what its graph has saved

    def call():
        with torch.no_grad():
            found = o.grad_fn.apply(tensors["d_o"], None)  # None: of the final state
        return dict(zip(case.wants.values(), found, strict=False))  # beyond: of arguments that have none

    return call
