//! Which kernel makes a product: the fastest, as CubeCL's tuner measures them on the device, once for each kind of product.

use crate::cubek::Cubek;
use crate::launch::{Codes, Ending, Floats, Place, RowScales};
use crate::mma::Tile;
use crate::weights::{Int8, Way};
use cubecl_runtime::tune::{LocalTuner, Tunable, TunableSet};
use std::fmt;

/// A product, for as long as it takes to try each way.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) weights: Int8,
    pub(crate) codes: Codes,
    pub(crate) rows: RowScales,
    pub(crate) place: Place,
    pub(crate) ending: Ending,
    pub(crate) y: Floats,
}

/// Those that take matrix instructions; all of them give the same sums.
pub const WAYS: [Way; 7] = [
    Way::Mma(Tile::MEDIUM),
    Way::Mma(Tile::LARGE),
    Way::Mma(Tile::SMALL),
    Way::Cubek(Cubek::Simple),
    Way::Cubek(Cubek::Double),
    Way::Cubek(Cubek::Ordered),
    Way::Cubek(Cubek::Specialized),
];

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mma(tile) => write!(f, "{}x{} tiles", tile.extents()[0], tile.extents()[1]),
            Self::Cubek(strategy) => write!(f, "CubeK {strategy:?}"),
            Self::FewRows => f.write_str("few rows"),
            Self::Dp4a => f.write_str("dot products"),
        }
    }
}

impl Call {
    /// Products alike enough to be as fast by the same kernel.
    fn kind(&self) -> String {
        let Self { weights, codes, place, y, .. } = self;
        let kept = if weights.is_sparse() { "sparse" } else { "dense" };
        let rows = codes.n_rows.next_power_of_two();
        let cols = place.end_col - place.first_col;
        let outputs = if place.col_stride == 1 { "rows" } else { "images" };
        format!("{rows}x{cols} of {}, {kept}, to {outputs} of {}", weights.n_in(), y.dtype)
    }

    /// The same call with outputs of its own, which may be written again and again.
    fn apart(&self) -> Self {
        let Floats { dtype, n_rows, n_cols, .. } = self.y;
        Self { y: Floats::empty(self.weights.gpu(), dtype, n_rows, n_cols), ..self.clone() }
    }

    fn by(&self, way: Way) -> Result<(), String> {
        let Self { weights, codes, rows, place, ending, y } = self;
        weights.multiply_by(way, codes, rows, *place, ending, y)
    }

    /// Makes the product by the fastest of [`WAYS`].
    pub(crate) fn by_the_fastest(self) {
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
