"""Compute expected results for the tests of briquette-methods in f64, by formulas of the reference implementations:

- GPTQ: llm-compressor's `quantize_weight` (activation order, static groups, dead inputs), with a mask as in SparseGPT's
  `fasterprune`;
- SparseGPT: IST-DASLab's `fasterprune`, except that each block drops exactly its share, not one more. A given mask is handled as
  in llm-compressor's `sparsify_weight`;
- ADMM: fmfi-compbio's `AdmmPruner.fasterprune` (`iters=20`, `iterative_prune=15`, `percdamp=.1`).

    python bench/peers/solve_reference.py crates/briquette-methods/tests/fixtures/reference.safetensors
"""

import sys

import numpy as np
import torch
from safetensors.numpy import save_file

ROWS, COLS, TOKENS, BLOCK = 24, 288, 400, 128


def inputs(generator):
    """Returns f32 weights, and inputs in sixteenths: correlated, with outliers, of low rank, one of them dead."""
    mixed = generator.standard_normal((TOKENS, 40)) @ generator.standard_normal((40, COLS)) / 6
    x = mixed + 0.4 * generator.standard_normal((TOKENS, COLS))
    x *= np.exp(0.6 * generator.standard_normal(COLS))
    x[:, [7, 200]] *= 4
    x[:, 33] = 0
    x = np.clip(np.round(16 * x), -127, 127).astype(np.int8)
    weights = (generator.standard_normal((ROWS, COLS)) / 8).astype(np.float32)
    return weights, x


def factor(H, W, damping):
    """Returns the upper Cholesky factor of the damped inverse, and zeroes the weights of dead inputs.

    All three references compute it in this way.
    """
    dead = torch.diag(H) == 0
    H[dead, dead] = 1
    W[:, dead] = 0
    H += damping * torch.mean(torch.diag(H)) * torch.eye(H.shape[0], dtype=H.dtype)
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(H)), upper=True)


def gptq(W, H, scale, zero, bounds, group, ordered, keep=None, carries_into_dropped=True):
    """Returns the codes of GPTQ. `scale` and `zero` are `[rows, groups]` of stored columns."""
    W, H = W.clone(), H.clone()
    perm = torch.argsort(torch.diag(H), descending=True, stable=True) if ordered else torch.arange(W.shape[1])
    W, H = W[:, perm], H[perm][:, perm]
    keep = torch.ones_like(W, dtype=torch.bool) if keep is None else keep[:, perm]
    g_idx = (torch.arange(W.shape[1]) // group)[perm]
    Hinv = factor(H, W, 0.01)
    codes = torch.zeros_like(W)
    for i1 in range(0, W.shape[1], BLOCK):
        i2 = min(i1 + BLOCK, W.shape[1])
        W1, Err1, Hinv1 = W[:, i1:i2].clone(), torch.zeros_like(W[:, i1:i2]), Hinv[i1:i2, i1:i2]
        for i in range(i2 - i1):
            w, d, g = W1[:, i], Hinv1[i, i], g_idx[i1 + i]
            code = torch.clamp(torch.round(w / scale[:, g]) + zero[:, g], *bounds)
            code = torch.where(keep[:, i1 + i], code, zero[:, g])
            codes[:, i1 + i] = code
            err1 = (w - (code - zero[:, g]) * scale[:, g]) / d
            update = err1.unsqueeze(1).matmul(Hinv1[i, i:].unsqueeze(0))
            W1[:, i:] -= update if carries_into_dropped else update * keep[:, i1 + i : i2]
            Err1[:, i] = err1
        update = Err1.matmul(Hinv[i1:i2, i2:])
        W[:, i2:] -= update if carries_into_dropped else update * keep[:, i2:]
    return codes[:, torch.argsort(perm)]


def sparsegpt(W, H, share=0.0, n=0, m=0, given=None):
    """Returns the mask and the weights of SparseGPT. `n` of every `m` are dropped, as in the reference."""
    W, H = W.clone(), H.clone()
    Hinv = factor(H, W, 0.01)
    dropped = torch.zeros_like(W, dtype=torch.bool) if given is None else ~given
    total, done, blocks = round(share * W.numel()), 0, list(range(0, W.shape[1], BLOCK))
    lacks = [max(0.0, share * W[:, i : i + BLOCK].numel() - dropped[:, i : i + BLOCK].sum().item()) for i in blocks]
    more, lacked = total - dropped.sum().item(), 0.0
    for i1, lack in zip(blocks, lacks):
        i2 = min(i1 + BLOCK, W.shape[1])
        W1, Err1, Hinv1 = W[:, i1:i2].clone(), torch.zeros_like(W[:, i1:i2]), Hinv[i1:i2, i1:i2]
        mask1 = dropped[:, i1:i2]
        if m == 0:
            lacked += lack
            until = int(more * lacked / sum(lacks) + 0.5)
            tmp = W1**2 / torch.diag(Hinv1).reshape((1, -1)) ** 2
            tmp[mask1] = torch.inf
            if until > done:
                thresh = torch.sort(tmp.flatten())[0][until - done - 1]
                mask1 |= tmp <= thresh
            done = until
        Q1 = torch.zeros_like(W1)
        for i in range(i2 - i1):
            w, d = W1[:, i], Hinv1[i, i]
            if m and i % m == 0:
                tmp = W1[:, i : i + m] ** 2 / torch.diag(Hinv1)[i : i + m].reshape((1, -1)) ** 2
                tmp = torch.where(mask1[:, i : i + m], -1.0, tmp)
                mask1.scatter_(1, i + torch.topk(tmp, n, dim=1, largest=False)[1], True)
            q = w.clone()
            q[mask1[:, i]] = 0
            Q1[:, i] = q
            err1 = (w - q) / d
            W1[:, i:] -= err1.unsqueeze(1).matmul(Hinv1[i, i:].unsqueeze(0))
            Err1[:, i] = err1
        W[:, i1:i2] = Q1
        W[:, i2:] -= Err1.matmul(Hinv[i1:i2, i2:])
    return ~dropped, W


def admm(W, XX, sparsity, per_out=False, is_2_of_4=False, percdamp=0.1, iterative_prune=15, iters=20):
    """Returns the mask and the weights of ADMM."""
    norm = torch.diag(XX).sqrt() + 1e-8
    XX = XX / norm
    XX = (XX.T / norm).T
    W = (W * norm).T
    eye = torch.eye(XX.shape[0], dtype=XX.dtype)
    XX = XX + percdamp * torch.diag(XX).mean() * eye
    XY = XX.matmul(W)
    XXinv = torch.inverse(XX + eye)
    U = torch.zeros_like(W)
    for itt in range(iters):
        if itt < iterative_prune:
            cur_sparsity = sparsity - sparsity * (1 - (itt + 1) / iterative_prune) ** 3
            if is_2_of_4:
                WT = (W + U).T.reshape((-1, 4)).abs()
                mask = torch.zeros(WT.shape, dtype=torch.bool)
                sort_inds = WT.sort(dim=1)[1]
                mask[torch.arange(WT.shape[0]), sort_inds[:, 2]] = 1
                mask[torch.arange(WT.shape[0]), sort_inds[:, 3]] = 1
                Z2 = (W + U).abs()
                Z2[mask.reshape(W.T.shape).T] = torch.inf
                mask = Z2 >= Z2.flatten().kthvalue(int(W.numel() * cur_sparsity) + 1)[0]
            elif per_out:
                thres = (W + U).abs().sort(dim=0)[0][int(W.shape[0] * cur_sparsity)]
                mask = (W + U).abs() >= thres.unsqueeze(0)
            else:
                topk = torch.topk((W + U).abs().flatten(), k=int(W.numel() * sparsity), largest=False)
                mask = torch.ones(W.numel(), dtype=torch.bool)
                mask[topk.indices] = 0
                mask = mask.reshape(W.shape)
        Z = (W + U) * mask
        U = U + (W - Z)
        W = XXinv.matmul(XY + (Z - U))
    return mask.T, (((W + U) * mask).T / norm)


def scales(W, n_bits, asymmetric, group):
    """Returns the scales of plain ranges for each group, in f32 and int8."""
    groups = W.numpy().reshape(W.shape[0], -1, group)
    high = 2 ** (n_bits - 1) - 1
    if not asymmetric:
        scale = (np.abs(groups).max(2) / high).astype(np.float32)
        return scale, np.zeros_like(scale, dtype=np.int8), (-high, high)
    low, top = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    scale = ((top - low) / (2**n_bits - 1)).astype(np.float32)
    zero = np.clip(-high - 1 - np.round(low / scale), -high - 1, high)
    return scale, zero.astype(np.int8), (-high - 1, high)


def main(path):
    weights, x = inputs(np.random.default_rng(20261123))
    W, X = torch.from_numpy(weights).double(), torch.from_numpy(x).double() / 16
    XX = X.T @ X
    H = XX * (2 / TOKENS)
    error = lambda new: np.array([((X @ (new - W).T) ** 2).sum().item() / TOKENS])
    out = {"weights": weights, "inputs": x}

    dense = W.abs() >= W.abs().flatten().kthvalue(int(0.4 * W.numel()))[0]
    out["keep"] = dense.numpy().astype(np.uint8)
    cases = [("int4-g32-ordered", 4, False, 32, True, None), ("int8-asym", 8, True, COLS, False, None)]
    cases += [("int3-asym-g96-ordered", 3, True, 96, True, None), ("int4-g32-ordered-kept", 4, False, 32, True, dense)]
    for name, n_bits, asymmetric, group, ordered, keep in cases:
        scale, zero, bounds = scales(W, n_bits, asymmetric, group)
        s, z = torch.from_numpy(scale).double(), torch.from_numpy(zero).double()
        value = lambda codes: (codes - z.repeat_interleave(group, 1)) * s.repeat_interleave(group, 1)
        codes = gptq(W, H, s, z, bounds, group, ordered, keep)
        nearest = torch.clamp(torch.round(W / s.repeat_interleave(group, 1)) + z.repeat_interleave(group, 1), *bounds)
        if keep is not None:
            nearest = torch.where(keep, nearest, z.repeat_interleave(group, 1))
            for kind, start in [("dense", W), ("sparse", W * keep)]:
                for carries in (True, False):
                    found = value(gptq(start, H, s, z, bounds, group, ordered, keep, carries))
                    print(name, kind, "carried into dropped" if carries else "zeros preserved", error(found)[0],
                          "from what it began with", ((X @ (found - start).T) ** 2).sum().item() / TOKENS)
        out |= {f"gptq.{name}.codes": codes.numpy().astype(np.int8), f"gptq.{name}.scale": scale, f"gptq.{name}.zero": zero}
        out[f"gptq.{name}.error"] = error(value(codes))
        print(name, out[f"gptq.{name}.error"][0], "nearest", error(value(nearest))[0])

    third = W.abs() >= W.abs().flatten().kthvalue(int(0.3 * W.numel()))[0]
    pruned = {"share": sparsegpt(W, H, share=0.5), "2-4": sparsegpt(W, H, n=2, m=4)}
    pruned["given"] = sparsegpt(W, H, share=0.6, given=third)
    out["given"] = third.numpy().astype(np.uint8)
    solved = {"share": admm(W, XX, 0.5), "per-row": admm(W, XX, 0.5, per_out=True), "2-4": admm(W, XX, 0.5, is_2_of_4=True)}
    for method, found in [("sparsegpt", pruned), ("admm", solved)]:
        for name, (keep, new) in found.items():
            out |= {f"{method}.{name}.keep": keep.contiguous().numpy().astype(np.uint8), f"{method}.{name}.error": error(new)}
            print(method, name, 1 - keep.double().mean().item(), error(new)[0], "magnitude", error(W * (W.abs() >= W.abs().median()))[0])
    save_file(out, path)


if __name__ == "__main__":
    main(sys.argv[1])
