// SPDX-License-Identifier: GPL-2.0-only
// Shadow pages that a switch has retired and not dropped yet track no writes, and what only shadow paging needs goes
// after the last of them, so that whoever reads the reverse maps has to look under the lock.
// file: arch/x86/kvm/mmu/page_track.c
// file: arch/x86/kvm/debugfs.c
// expect: 6.1 +6 -1
// expect: 6.12 +6 -1
// expect: 7.0 +6 -1
// expect: 7.3 +6 -1

@@ @@
#include "mmu_internal.h"
+#include "../paging_mode.h"

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

// Who begins to track writes of his own while retired pages are dropped would miss some: he waits for the end.
@@ @@
kvm_page_track_register_notifier(...)
{
	<...
+	mutex_lock(&kvm->slots_lock);
	write_lock(&kvm->mmu_lock);
	...
	write_unlock(&kvm->mmu_lock);
+	mutex_unlock(&kvm->slots_lock);
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
