//! Selection of the fastest kernel for a product.
//!
//! CubeCL's tuner measures the kernels on the device, once for each kind of product.

use crate::int8::Int8;
use crate::launch::{CodeWords, DeviceEpilogue, Floats, OutputPlacement, Product, RowScales};
use crate::mma::MmaTile;
use crate::way::{Way, multiply_by};
use cubecl_runtime::tune::{LocalTuner, Tunable, TunableSet};

/// Up to this many rows, reading the weights takes longer than multiplying.
const FEW: usize = 8;

/// The candidate kernels with matrix instructions. All of them give the same sums.
pub const WAYS: [Way; 4] =
    [Way::Warpgroups, Way::Mma(MmaTile::MEDIUM), Way::Mma(MmaTile::LARGE), Way::Mma(MmaTile::SMALL)];

/// Computes a product with the fastest kernel.
pub(crate) fn multiply(product: &Product, y: &Floats) {
    let Product { codes, rows, weights, place, epilogue } = *product;
    if place.is_empty(codes.n_rows) {
        return;
    }
    if let Some(way) = known_way(weights, codes.n_rows) {
        return multiply_by(way, product, y).expect("these kernels support all extents");
    }
    let (weights, codes, rows, epilogue, y) =
        (weights.clone(), codes.clone(), rows.clone(), epilogue.clone(), y.clone());
    Call { weights, codes, rows, place, epilogue, y }.by_the_fastest();
}

/// Returns the kernel for `n_rows` rows of codes if no measurement is needed.
///
/// This is the case for few rows, and on devices without matrix instructions.
fn known_way(weights: &Int8, n_rows: usize) -> Option<Way> {
    if n_rows <= FEW {
        return Some(Way::FewRows);
    }
    (!weights.gpu().has_int8_matrices()).then_some(Way::Dp4a)
}

/// A product, for the duration of the trials.
#[derive(Clone)]
struct Call {
    weights: Int8,
    codes: CodeWords,
    rows: RowScales,
    place: OutputPlacement,
    epilogue: DeviceEpilogue,
    y: Floats,
}

impl Call {
    /// Returns a key for products that are fastest with the same kernel.
    fn kind(&self) -> String {
        let Self { weights, codes, place, y, .. } = self;
        let kept = if weights.is_sparse() { "sparse" } else { "dense" };
        let rows = codes.n_rows.next_power_of_two();
        let cols = place.end_col - place.first_col;
        let outputs = if place.col_stride == 1 { "rows" } else { "images" };
        format!("{rows}x{cols} of {}, {kept}, to {outputs} of {}", weights.n_in(), y.dtype)
    }

    /// Returns the same call with its own outputs, which a trial may overwrite.
    fn apart(&self) -> Self {
        let Floats { dtype, n_rows, n_cols, .. } = self.y;
        Self { y: Floats::empty(self.weights.gpu(), dtype, n_rows, n_cols), ..self.clone() }
    }

    fn by(&self, way: Way) -> Result<(), String> {
        let Self { weights, codes, rows, place, epilogue, y } = self;
        multiply_by(way, &Product { codes, rows, weights, place: *place, epilogue }, y)
    }

    /// Computes the product with the fastest of [`WAYS`].
    fn by_the_fastest(self) {
        static TUNER: LocalTuner<String, String> = LocalTuner::new("briquette-products");
        let gpu = self.weights.gpu().clone();
        let device = gpu.client().service_id().device.to_string();
        let ways = TUNER.init(&device, || {
            let none = TunableSet::new(|call: &Self| call.kind(), |_: &String, call: &Self| call.apart());
            let try_by = |way: Way| Tunable::new(&way.to_string(), move |call: Self| call.by(way));
            WAYS.into_iter().fold(none, |ways, way| ways.with(try_by(way)))
        });
        TUNER.execute(&device, gpu.client(), ways, self);
    }
}
