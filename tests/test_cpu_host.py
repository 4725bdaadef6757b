"""The CPU support: what the processor is, and products of bfloat16 on processors without
instructions for them."""

import cpuinfo
import pytest
import torch
import torch.distributed.distributed_c10d as c10d
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_plugins.engine.hosts import cpu

asked = cpuinfo.get_cpu_info
plain = torch.nn.functional.linear
ours = cpu.bfloat16_linear(plain)
EPSILON = torch.finfo(torch.bfloat16).eps


def tensors(seed, shape, outputs, bias, dtype):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=draw).to(dtype)
    weight = torch.randn(outputs, shape[-1], generator=draw).to(dtype)
    return [x, weight, *([torch.randn(outputs, generator=draw).to(dtype)] if bias else [])]


def products(linear, given, upstream, needed):
    leaves = [t.clone().requires_grad_(n) for t, n in zip(given, needed, strict=False)]
    result = linear(*leaves)
    if any(t.requires_grad for t in leaves):
        (result * upstream).sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves)]


@given(
    st.integers(0, 2**31),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(1, 40),
    st.integers(1, 9),
    st.booleans(),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@settings(max_examples=40, deadline=None)
def test_products_and_gradients_are_those_of_float64_rounded_once(
    seed, rows, inputs, outputs, bias, needed
):
    given = tensors(seed, (*rows, inputs), outputs, bias, torch.bfloat16)
    upstream = torch.randn(*rows, outputs, generator=torch.Generator().manual_seed(seed + 1)).to(
        torch.bfloat16
    )
    found = products(ours, given, upstream, needed)
    wanted = products(plain, [t.double() for t in given], upstream.double(), needed)
    terms = max(inputs, outputs, *rows, rows[0] * rows[-1])
    for got, exact in zip(found, wanted, strict=True):
        assert (got is None) == (exact is None)
        if got is not None:
            assert got.dtype is torch.bfloat16 and got.shape == exact.shape
            # One rounding of the sum, and float32's own of its terms, which may cancel.
            assert torch.all(
                (got.double() - exact).abs() <= EPSILON / 2 * exact.abs() + 1e-5 * terms
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_are_left_alone(dtype):
    given = tensors(3, (4, 7), 5, True, dtype)
    assert torch.equal(ours(*given), plain(*given))


def test_what_is_kept_for_the_backward_pass_is_no_copy():
    x, weight = (t.requires_grad_() for t in tensors(1, (4, 8), 3, False, torch.bfloat16))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        ours(x, weight)
    assert {t.data_ptr() for t in kept} == {x.data_ptr(), weight.data_ptr()}


def test_deepspeed_is_told_what_it_would_find_out(monkeypatch):
    from deepspeed.ops.op_builder.cpu_adam import CPUAdamBuilder

    monkeypatch.setattr(cpuinfo, "get_cpu_info", asked)
    builder, maker = CPUAdamBuilder(), asked()["vendor_id_raw"]
    found_out = builder.cpu_arch(), builder.simd_width()
    cpu.know_processor()
    assert cpuinfo.get_cpu_info is not asked
    assert (builder.cpu_arch(), builder.simd_width()) == found_out
    assert cpuinfo.get_cpu_info()["vendor_id_raw"] == maker


def test_collectives_end_in_the_order_in_which_they_are_begun(monkeypatch):
    """DeepSpeed waits for the last of several, and then uses what all have written. Twice: a
    process may import both actors."""
    monkeypatch.setattr(c10d, "ProcessGroupGloo", c10d.ProcessGroupGloo)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    cpu.do_collectives_in_order()
    cpu.do_collectives_in_order()
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        first, last = (
            torch.distributed.all_gather([torch.empty(count)], torch.ones(count), async_op=True)
            for count in (20_000_000, 1)
        )
        last.wait()
        assert first.is_completed()
    finally:
        torch.distributed.destroy_process_group()
