// SPDX-License-Identifier: GPL-2.0-only
// Shadow pages that a switch has retired and not dropped yet track no writes, and what only shadow paging needs goes
// after the last of them, so that whoever reads the reverse maps has to look under the lock.
// file: arch/x86/kvm/mmu/page_track.c
// file: arch/x86/kvm/debugfs.c
// expect: 6.1 +3 -1
// expect: 6.12 +3 -1

@@ @@
kvm_slot_page_track_is_active(...)
{
	<...
-	if (!slot)
+	if (!slot || kvm_paging_tracks_nothing(kvm))
		return false;
	...>
}

@@ @@
kvm_gfn_is_write_tracked(...)
{
	<...
-	if (!slot)
+	if (!slot || kvm_paging_tracks_nothing(kvm))
		return false;
	...>
}

@@
expression E;
@@
kvm_mmu_rmaps_stat_show(...)
{
	<...
	E = __kvm_memslots(kvm, i);
+	if (!kvm_memslots_have_rmaps(kvm))
+		break;
	...>
}
