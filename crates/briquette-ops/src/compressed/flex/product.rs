//! Products with a tied head.

use crate::compressed::product::ProductOps;
use crate::flex_tensor::elements;
use briquette_cpu::float_product;
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;

impl ProductOps for Flex {
    fn rows_product(x: FloatTensor<Self>, weights: FloatTensor<Self>) -> FloatTensor<Self> {
        let [x, weights] = [x, weights].map(|tensor| tensor.to_contiguous());
        let ([batch, length, n_in], [n_out, _]) = (x.layout().shape().dims(), weights.layout().shape().dims());
        let mut y = vec![0.0; batch * length * n_out];
        float_product(elements(&x), batch * length, elements(&weights), [n_out, n_in], &mut y);
        FlexTensor::from_data(TensorData::new(y, [batch, length, n_out]))
    }
}
