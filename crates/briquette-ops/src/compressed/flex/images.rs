//! Operations on images.

use crate::compressed::images::{ImageGrads, ImageOps};
use crate::flex_tensor::elements;
use briquette_cpu::Conv2dShape;
use briquette_cpu::float::FloatConv2d;
use briquette_cpu::float::{max_pool2d, max_pool2d_grad};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;

/// Returns the convolution for a tensor of images.
fn convolution(x: &FlexTensor, shape: Conv2dShape) -> FloatConv2d {
    let [n_images, n_in, height, width] = x.layout().shape().dims();
    assert_eq!(n_in, shape.n_in, "channels convolved as {shape:?}");
    FloatConv2d { shape, size: [height, width], n_images }
}

impl ImageOps for Flex {
    fn float_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        shape: Conv2dShape,
    ) -> FloatTensor<Self> {
        let [x, weight, bias] = [x, weight, bias].map(|tensor| tensor.to_contiguous());
        let conv = convolution(&x, shape);
        let [height, width] = shape.out_size(conv.size);
        let y = conv.forward(elements(&x), elements(&weight), elements(&bias));
        FlexTensor::from_data(TensorData::new(y, [conv.n_images, shape.n_out, height, width]))
    }

    fn float_max_pool2d(x: FloatTensor<Self>, shape: Conv2dShape) -> FloatTensor<Self> {
        let x = x.to_contiguous();
        let [n, channels, height, width] = x.layout().shape().dims();
        let [rows, cols] = shape.out_size([height, width]);
        let y = max_pool2d(elements(&x), [height, width], &shape);
        FlexTensor::from_data(TensorData::new(y, [n, channels, rows, cols]))
    }
}

impl ImageGrads for Flex {
    fn conv2d_input_grad(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        shape: Conv2dShape,
    ) -> FloatTensor<Self> {
        let [weight, dy] = [weight, dy].map(|tensor| tensor.to_contiguous());
        let dx = convolution(&x, shape).input_grad(elements(&weight), elements(&dy));
        FlexTensor::from_data(TensorData::new(dx, x.layout().shape().clone()))
    }

    fn conv2d_weight_grad(x: FloatTensor<Self>, dy: FloatTensor<Self>, shape: Conv2dShape) -> FloatTensor<Self> {
        let [x, dy] = [x, dy].map(|tensor| tensor.to_contiguous());
        let dw = convolution(&x, shape).weight_grad(elements(&x), elements(&dy));
        FlexTensor::from_data(TensorData::new(dw, shape.weight_dims()))
    }

    fn max_pool2d_grad(x: FloatTensor<Self>, dy: FloatTensor<Self>, shape: Conv2dShape) -> FloatTensor<Self> {
        let [x, dy] = [x, dy].map(|tensor| tensor.to_contiguous());
        let [.., height, width] = x.layout().shape().dims::<4>();
        let dx = max_pool2d_grad(elements(&x), elements(&dy), [height, width], &shape);
        FlexTensor::from_data(TensorData::new(dx, x.layout().shape().clone()))
    }
}
