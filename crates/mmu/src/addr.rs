// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One type per kind of address, so that a guest-physical address is never used in place of a
//! host-physical one. Each type wraps the raw 64-bit value.

macro_rules! address {
    ($( $(#[$doc:meta])* $name:ident ),* $(,)?) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// Number of the 4 KB frame (or virtual page) that holds the address.
            #[inline]
            pub const fn frame(self) -> u64 {
                self.0 >> 12
            }

            /// The first address of 4 KB frame (or virtual page) `frame`.
            #[inline]
            pub const fn from_frame(frame: u64) -> Self {
                $name(frame << 12)
            }
        }

        impl std::fmt::LowerHex for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )* };
}

address! {
    /// Guest-virtual address.
    Gva,
    /// Guest-physical address.
    Gpa,
    /// Host-physical address.
    Hpa,
}

impl Gva {
    /// Whether the address is in the upper half, which operating systems keep for their kernel.
    #[inline]
    pub const fn is_kernel(self) -> bool {
        self.0 >> 63 != 0
    }
}
