//! Defaults of rsockets: threads sleep without polling first.

pub struct Defaults {
    pub polling_time_us: u32,
}

pub fn defaults() -> &'static Defaults {
    &Defaults { polling_time_us: 0 }
}
