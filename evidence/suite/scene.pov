// SPDX-License-Identifier: Apache-2.0 OR MIT
// Glass and metal balls in a spiral over a chequered floor.
#version 3.7;
#include "colors.inc"
global_settings { assumed_gamma 1.0 max_trace_level 6 }
camera { location <0, 4, -9> look_at <0, 1, 0> angle 45 }
light_source { <8, 12, -10> White }
light_source { <-10, 9, -4> rgb 0.5 area_light <2, 0, 0>, <0, 0, 2>, 3, 3 }
plane { y, 0 pigment { checker rgb 0.2, rgb 0.9 } normal { bumps 0.15 scale 0.3 } finish { reflection 0.1 } }
#declare I = 0;
#while (I < 140)
    sphere {
        <cos(I * 0.35) * (0.4 + I * 0.025), 0.25 + abs(sin(I * 0.21)) * 2, sin(I * 0.35) * (0.4 + I * 0.025)>, 0.22
        #if (mod(I, 3) = 0)
            pigment { rgbf <0.9, 0.95, 1, 0.85> } interior { ior 1.5 }
        #else
            pigment { marble turbulence 0.7 color_map { [0 rgb <0.9, 0.6, 0.2>] [1 rgb <0.2, 0.1, 0.5>] } }
        #end
        finish { specular 0.6 reflection 0.25 }
    }
    #declare I = I + 1;
#end
isosurface {
    function { x*x + y*y + z*z - 0.6 + 0.12 * sin(9*x) * sin(9*y) * sin(9*z) }
    contained_by { box { -1, 1 } } max_gradient 4
    translate <0, 2.6, 0> pigment { rgb <0.7, 0.2, 0.25> } finish { phong 0.8 }
}
