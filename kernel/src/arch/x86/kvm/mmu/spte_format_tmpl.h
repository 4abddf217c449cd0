/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Included in mmu.c before paging_tmpl.h. Only that one has these two from here on, in
 * functions whose names are made by a macro and no semantic patch can give: it asks them
 * of the table sp.
 */
#define shadow_present_mask masks_of_role(sp->role)->shadow_present_mask
#define shadow_host_writable_mask masks_of_role(sp->role)->shadow_host_writable_mask
