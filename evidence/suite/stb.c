// SPDX-License-Identifier: Apache-2.0 OR MIT
// For the compiler: several libraries of one file each (public domain, Debian's
// libstb-dev) as one big unit.
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_TRUETYPE_IMPLEMENTATION
#define STB_RECT_PACK_IMPLEMENTATION
#define STB_DXT_IMPLEMENTATION
#include <stb/stb_dxt.h>
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>
#include <stb/stb_rect_pack.h>
#include <stb/stb_truetype.h>
