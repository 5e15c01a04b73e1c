"""Hessian-vector products by compact L-BFGS, for many clients at once, in blocks of parameters."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 1 << 17  # parameters held at once in float64


def cut_blocks(size: int) -> Iterator[slice]:
    """Return slices that cut [0, size) into blocks of parameters."""
    return (slice(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK))


def solve_coefficients(s: Tensor, y: Tensor, count: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return σ [C] and the weights a, b [C, m] of H_c v = σ_c v - σ_c Σ a_ci s_ci - Σ b_ci y_ci.

        H v = σ v - [σ S, Y] [[σ S'S, L], [L', -D]]⁻¹ [σ S'v ; Y'v],    A = S'Y,  L its strictly lower part,  D its diagonal,
        σ = y's / s's of the newest pair

    Args:
        s, y: [C, m, P] each client's pairs, oldest first; the first ``count`` are used.
        count: [C] the number of pairs of each client; σ is NaN if there are none.
        v: [P].

    The system is solved in float64 without regularisation. If it is singular, a and b are NaN.
    Reference: Byrd, Nocedal and Schnabel, "Representations of Quasi-Newton Matrices and Their Use in Limited Memory Methods", 1994.
    """
    ss, sy, sv, yv = _multiply_pairs(s, y, v)
    clients, most = count.shape[0], s.shape[1]
    sigma = torch.full((clients,), torch.nan, dtype=torch.float64)
    a, b = torch.full((2, clients, most), torch.nan, dtype=torch.float64)
    below = torch.arange(most)[:, None] > torch.arange(most)  # torch.tril would start every thread
    for c, m in enumerate(count.tolist()):
        if m == 0:
            continue
        sigma[c] = sy[c, m - 1, m - 1] / ss[c, m - 1, m - 1]
        inner = sy[c, :m, :m]
        lower = torch.where(below[:m, :m], inner, 0.0)
        top = torch.cat([sigma[c] * ss[c, :m, :m], lower], dim=1)
        bottom = torch.cat([lower.T, -torch.diag(inner.diagonal())], dim=1)
        right = torch.cat([sigma[c] * sv[c, :m], yv[c, :m]])
        solved, info = torch.linalg.solve_ex(torch.cat([top, bottom]), right)
        if int(info) == 0:
            a[c], b[c] = 0.0, 0.0
            a[c, :m], b[c, :m] = solved[:m], solved[m:]
    return sigma.to(v.device), a.to(v.device), b.to(v.device)


def multiply(s: Tensor, y: Tensor, v: Tensor, weights: tuple[Tensor, Tensor, Tensor], part: slice) -> Tensor:
    """Return H_c v of every client c, for the parameters in ``part`` only: [C, block] in float64."""
    sigma, a, b = weights
    here, sigma_a = v[part].double(), sigma[:, None] * a
    pulled = torch.einsum("cm,cmp->cp", sigma_a, s[:, :, part].double())
    return sigma[:, None] * here - pulled - torch.einsum("cm,cmp->cp", b, y[:, :, part].double())


def _multiply_pairs(s: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return S'S, S'Y [C, m, m] and S'v, Y'v [C, m] in float64, a block of parameters at a time."""
    clients, most, size = s.shape
    ss, sy = torch.zeros(2, clients, most, most, dtype=torch.float64, device=s.device)
    sv, yv = torch.zeros(2, clients, most, dtype=torch.float64, device=s.device)
    for part in cut_blocks(size):
        s_, y_, v_ = s[:, :, part].double(), y[:, :, part].double(), v[part].double()
        ss += s_ @ s_.mT
        sy += s_ @ y_.mT
        sv += s_ @ v_
        yv += y_ @ v_
    return ss.cpu(), sy.cpu(), sv.cpu(), yv.cpu()
