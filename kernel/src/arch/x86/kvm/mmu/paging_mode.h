/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The MMU's part of a paging mode per VM. Included in mmu.c, whose static functions it
 * uses.
 */
#include "../paging_mode.h"
#include "../paging_versions.h"
#include <linux/memcontrol.h>
#include <linux/sched/mm.h>
#include <linux/version.h>

/* Whether nested tables are the TDP MMU's, which a shadow page never touches. */
static bool kvm_paging_tdp_mmu(struct kvm *kvm)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	return is_tdp_mmu_enabled(kvm);
#else
	return tdp_mmu_enabled;
#endif
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 8, 0)
#define KVM_PAGING_ADDRESS_SPACES(kvm) KVM_ADDRESS_SPACE_NUM
#else
#define KVM_PAGING_ADDRESS_SPACES(kvm) kvm_arch_nr_memslot_as_ids(kvm)
#endif

static struct kvm_mmu_page *kvm_paging_root_to_sp(hpa_t root)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	return to_shadow_page(root);
#else
	return root_to_sp(root);
#endif
}

/* Whether the roots of an MMU are the TDP MMU's. All are of one kind: a switch frees all. */
bool kvm_paging_roots_are_tdp(struct kvm_mmu *mmu)
{
	int i;

	for (i = -1; i < KVM_MMU_NUM_PREV_ROOTS; i++) {
		hpa_t root = i < 0 ? mmu->root.hpa : mmu->prev_roots[i].hpa;
		struct kvm_mmu_page *sp = VALID_PAGE(root) ? kvm_paging_root_to_sp(root) : NULL;

		if (sp)
			return is_tdp_mmu_page(sp);
	}
	return false;
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0)
#define kvm_paging_write_track(slot) ((slot)->arch.gfn_track[KVM_PAGE_TRACK_WRITE])
#else
#define kvm_paging_write_track(slot) ((slot)->arch.gfn_write_track)
#endif

/*
 * What only shadow paging needs may not be there: the VM does without that mode then. A cgroup without room is an error,
 * and no reason for the OOM killer to end the VM.
 */
#define KVM_PAGING_MAY_FAIL (GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)

/* The same for vmalloc(), by which upstream frees these tables. In Linux 7.0 it takes a flag alone that gives up sooner. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0) && LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
#define KVM_PAGING_VMALLOC (GFP_KERNEL_ACCOUNT | __GFP_NORETRY | __GFP_NOWARN)
#else
#define KVM_PAGING_VMALLOC KVM_PAGING_MAY_FAIL
#endif

/* As memslot_rmap_alloc() and kvm_page_track_write_tracking_alloc(), which wait for the OOM killer. */
static int kvm_paging_alloc_slot(struct kvm_memory_slot *slot)
{
	int level;

	for (level = PG_LEVEL_4K; level <= KVM_MAX_HUGEPAGE_LEVEL; level++) {
		struct kvm_rmap_head **rmap = &slot->arch.rmap[level - PG_LEVEL_4K];

		if (!*rmap)
			*rmap = __vcalloc(__kvm_mmu_slot_lpages(slot, slot->npages, level), sizeof(**rmap),
					  KVM_PAGING_VMALLOC);
		if (!*rmap)
			return -ENOMEM;
	}
	if (!kvm_paging_write_track(slot))
		kvm_paging_write_track(slot) = __vcalloc(slot->npages, sizeof(*kvm_paging_write_track(slot)),
							 KVM_PAGING_VMALLOC);
	return kvm_paging_write_track(slot) ? 0 : -ENOMEM;
}

/* Where shadow pages are found. It stays, small, until the VM ends. */
static int kvm_paging_alloc_hash(struct kvm *kvm)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
	struct hlist_head *hash;

	if (kvm->arch.mmu_page_hash)
		return 0;
	hash = kvcalloc(KVM_NUM_MMU_PAGES, sizeof(*hash), KVM_PAGING_MAY_FAIL);
	if (!hash)
		return -ENOMEM;
	/* Pairs with kvm_get_mmu_page_hash(). */
	smp_store_release(&kvm->arch.mmu_page_hash, hash);
#endif
	return 0;
}

/* As mmu_first_shadow_root_alloc(). What an error leaves is given back by kvm_paging_mmu_free_shadow(). */
static int kvm_paging_alloc_slots(struct kvm *kvm)
{
	struct kvm_memory_slot *slot;
	int i, bkt, r = 0;

	mutex_lock(&kvm->slots_arch_lock);
	if (kvm_shadow_root_allocated(kvm))
		goto out;
	r = kvm_paging_alloc_hash(kvm);
	if (r)
		goto out;
	for (i = 0; i < KVM_PAGING_ADDRESS_SPACES(kvm); i++) {
		kvm_for_each_memslot(slot, bkt, __kvm_memslots(kvm, i)) {
			r = kvm_paging_alloc_slot(slot);
			if (r)
				goto out;
		}
	}
	/* After the pointers, as readers have no lock. */
	smp_store_release(&kvm->arch.shadow_root_allocated, true);
out:
	mutex_unlock(&kvm->slots_arch_lock);
	return r;
}

/*
 * Reverse maps and write tracking, which a VM under nested paging does without. Charged to the VM's cgroup, not to that
 * of who asks for the switch.
 */
int kvm_paging_mmu_alloc_shadow(struct kvm *kvm)
{
	struct mem_cgroup *memcg = get_mem_cgroup_from_mm(kvm->mm);
	struct mem_cgroup *before = set_active_memcg(memcg);
	int idx = srcu_read_lock(&kvm->srcu);
	int r = kvm_paging_alloc_slots(kvm);

	/* A dirty log of a stay splits large pages by these, and does without where there is no memory. */
	kvm->arch.split_shadow_page_cache.gfp_custom = KVM_PAGING_MAY_FAIL;
	kvm->arch.split_page_header_cache.gfp_custom = KVM_PAGING_MAY_FAIL;
	kvm->arch.split_desc_cache.gfp_custom = KVM_PAGING_MAY_FAIL;
	srcu_read_unlock(&kvm->srcu, idx);
	set_active_memcg(before);
	mem_cgroup_put(memcg);
	return r;
}

/*
 * With mmu_lock held for write, before a shadow root is made: reverse maps and write tracking are there. The caller has
 * just made them, without this lock, and kvm_paging_mmu_free_shadow() may have given them back since, as there was no
 * shadow page yet. Returns with the lock held, also after an error.
 */
int kvm_paging_mmu_keep_shadow(struct kvm *kvm)
{
	int r = 0;

	while (!r && !kvm_shadow_root_allocated(kvm)) {
		write_unlock(&kvm->mmu_lock);
		r = mmu_first_shadow_root_alloc(kvm);
		write_lock(&kvm->mmu_lock);
	}
	return r;
}

/*
 * With all vCPUs stopped: takes the locks that a switch to this mode needs, or none of them. The switch tries again until
 * its limit is over, since others may have these locks long: whoever reads a dirty log, or begins a migration.
 */
bool kvm_paging_mmu_trylock(struct kvm *kvm, bool nested)
{
	if (!nested && kvm_paging_tdp_mmu(kvm))
		return true;
	if (!mutex_trylock(&kvm->slots_lock))
		return false;
	if (!nested || write_trylock(&kvm->mmu_lock))
		return true;
	mutex_unlock(&kvm->slots_lock);
	return false;
}

/* Undoes the above for a switch to shadow paging that does not come about. */
void kvm_paging_mmu_unlock(struct kvm *kvm)
{
	if (!kvm_paging_tdp_mmu(kvm))
		mutex_unlock(&kvm->slots_lock);
}

/*
 * Retires every shadow page and leaves the TDP MMU's tables alone: the first half of kvm_mmu_zap_all_fast()
 * without the invalidation of TDP roots. No vCPU may have a root, so there is none to reload. Their number.
 *
 * With the locks of kvm_paging_mmu_trylock(). Gives up mmu_lock, and keeps slots_lock until
 * kvm_paging_mmu_drop_shadow(): two generations may not retire at once.
 */
unsigned long kvm_paging_mmu_retire_shadow(struct kvm *kvm)
{
	unsigned long pages;

	lockdep_assert_held(&kvm->slots_lock);
	lockdep_assert_held_write(&kvm->mmu_lock);
	pages = kvm_paging_shadow_pages(kvm);
	kvm->arch.mmu_valid_gen = kvm->arch.mmu_valid_gen ? 0 : 1;
	WRITE_ONCE(kvm->arch.paging.dropping, true);
	write_unlock(&kvm->mmu_lock);
	return pages;
}

/* Whether someone besides KVM tracks writes (kvmgt). He must not miss any while retired pages are dropped. */
bool kvm_paging_mmu_tracked_by_others(struct kvm *kvm)
{
#ifdef CONFIG_KVM_EXTERNAL_WRITE_TRACKING
	struct hlist_node *first = READ_ONCE(kvm->arch.track_notifier_head.track_notifier_list.first);

	/* Before 6.6 the MMU itself is the first in the list. */
	if (LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0) && first)
		first = READ_ONCE(first->next);
	return first;
#else
	return false;
#endif
}

/*
 * Zaps a batch of retired pages, which go to a list. Whether any is left. One level after the other, from the last up: a
 * page takes all unsync ones below it along, however many, without a break. What is not of the level goes round in the
 * list, whose order says no more than which pages are retired, and all are.
 */
static bool kvm_paging_zap_batch(struct kvm *kvm, struct list_head *zapped, int *level, unsigned long *left)
{
	int batch = 0, seen = 0, n;

	while (batch < BATCH_ZAP_PAGES && seen++ < 10 * BATCH_ZAP_PAGES) {
		struct kvm_mmu_page *sp;

		if (list_empty(&kvm->arch.active_mmu_pages))
			return false;
		if (!*left) {
			if (*level == PT64_ROOT_MAX_LEVEL)
				return false;
			++*level;
			*left = kvm_paging_shadow_pages(kvm);
			continue;
		}
		--*left;
		sp = list_last_entry(&kvm->arch.active_mmu_pages, struct kvm_mmu_page, link);
		if (sp->role.level != *level || !is_obsolete_sp(kvm, sp)) {
			list_move(&sp->link, &kvm->arch.active_mmu_pages);
			continue;
		}
		n = 0;
		__kvm_mmu_prepare_zap_page(kvm, sp, zapped, &n);
		batch += n ?: 1;
	}
	return true;
}

static void kvm_paging_free_zapped(struct kvm *kvm, struct list_head *zapped)
{
	int n;

	if (list_empty(zapped))
		return;
	kvm_flush_remote_tlbs(kvm);
	while (!list_empty(zapped)) {
		write_lock(&kvm->mmu_lock);
		for (n = 0; n < BATCH_ZAP_PAGES && !list_empty(zapped); n++)
			kvm_mmu_free_shadow_page(list_first_entry(zapped, struct kvm_mmu_page, link));
		write_unlock(&kvm->mmu_lock);
		cond_resched();
	}
}

/*
 * The second half. vCPUs may run, and mmu_lock is given up after each batch: upstream's kvm_zap_obsolete_pages() gives
 * it up only where the kernel may preempt, and the host's reclaim and every fault would wait for as long as the list is.
 * What is zapped cannot be found any more; it is freed when no vCPU is in the middle of a walk without a lock.
 */
void kvm_paging_mmu_drop_shadow(struct kvm *kvm)
{
	LIST_HEAD(zapped);
	unsigned long left = 0;
	int level = 0, batches = 0;
	bool more;

	do {
		kvm_paging_window(dropping);
		write_lock(&kvm->mmu_lock);
		more = kvm_paging_zap_batch(kvm, &zapped, &level, &left);
		if (!more)
			WRITE_ONCE(kvm->arch.paging.dropping, false);
		write_unlock(&kvm->mmu_lock);
		cond_resched();
		/* The kernel's shrinker does not see this list. */
		if (++batches % 100 == 0)
			kvm_paging_free_zapped(kvm, &zapped);
	} while (more);
	mutex_unlock(&kvm->slots_lock);
	kvm_paging_free_zapped(kvm, &zapped);
}

/*
 * Gives back what kvm_paging_mmu_alloc_shadow() made, unless there is a shadow page again: one of the next stay, or
 * one for a nested guest. Else every MMU notifier would go through both kinds of table for as long as the VM lives.
 */
void kvm_paging_mmu_free_shadow(struct kvm *kvm)
{
	struct kvm_memslots *slots;
	struct kvm_memory_slot *slot;
	bool unused;
	int i, bkt;

	/* The older MMU's nested tables have reverse maps, too. */
	if (!kvm_paging_tdp_mmu(kvm))
		return;
	/* No switch, which counts on what it found, is between its beginning and its end. */
	mutex_lock(&kvm->arch.paging.mutex);
	mutex_lock(&kvm->slots_arch_lock);
	write_lock(&kvm->mmu_lock);
	unused = kvm->arch.paging.nested && !kvm_paging_shadow_pages(kvm);
	if (unused)
		WRITE_ONCE(kvm->arch.shadow_root_allocated, false);
	write_unlock(&kvm->mmu_lock);
	mutex_unlock(&kvm->slots_arch_lock);
	mutex_unlock(&kvm->arch.paging.mutex);
	if (!unused)
		return;

	kvm_paging_window(free);
	/* Who found them there, and does not hold mmu_lock. */
	synchronize_srcu_expedited(&kvm->srcu);

	/* slots_lock: kvm_mmu_rmaps_stat_show() and slots' changes look before they take mmu_lock. */
	mutex_lock(&kvm->slots_lock);
	mutex_lock(&kvm->slots_arch_lock);
	if (!kvm_shadow_root_allocated(kvm)) {
		for (i = 0; i < KVM_PAGING_ADDRESS_SPACES(kvm); i++) {
			slots = __kvm_memslots(kvm, i);
			kvm_for_each_memslot(slot, bkt, slots) {
				int level;

				for (level = 0; level < KVM_NR_PAGE_SIZES; level++) {
					kvfree(slot->arch.rmap[level]);
					slot->arch.rmap[level] = NULL;
				}
				if (!kvm_page_track_write_tracking_enabled(kvm))
					kvm_page_track_free_memslot(slot);
			}
		}
	}
	mutex_unlock(&kvm->slots_arch_lock);
	mutex_unlock(&kvm->slots_lock);
}

/*
 * Before shadow paging begins, with the locks of kvm_paging_mmu_trylock(), which it gives up: nested tables that cannot
 * stay. Those of the TDP MMU stay, also if their entries have a format of their own (spte_format.h); those of the older
 * MMU are found by the same hash and reverse maps as shadow pages and must not be mistaken for them.
 */
unsigned long kvm_paging_mmu_zap_nested(struct kvm *kvm)
{
	unsigned long tables;

	if (kvm_paging_tdp_mmu(kvm))
		return 0;
	tables = kvm_paging_mmu_nested_tables(kvm);
	kvm_mmu_zap_all_fast(kvm);
	mutex_unlock(&kvm->slots_lock);
	return tables;
}

static struct kvm_mmu_memory_cache *kvm_paging_cache(struct kvm_vcpu *vcpu, int i)
{
	struct kvm_mmu_memory_cache *const caches[KVM_PAGING_CACHES] = {
		&vcpu->arch.mmu_pte_list_desc_cache, &vcpu->arch.mmu_shadow_page_cache,
		&vcpu->arch.mmu_shadowed_info_cache, &vcpu->arch.mmu_page_header_cache,
	};

	return caches[i];
}

/*
 * Whether a vCPU goes without a shadow page rather than call the OOM killer: in shadow paging, and after it if the vCPU was
 * born there, until an allocation fails with no shadow page left to drop. The VM goes back to nested paging then, see
 * kvm_paging_ends_run().
 */
void kvm_paging_mmu_may_fail(struct kvm_vcpu *vcpu, bool may)
{
	int i;

	vcpu->arch.paging.may_fail = may;
	for (i = 0; i < KVM_PAGING_CACHES; i++)
		kvm_paging_cache(vcpu, i)->gfp_custom = may ? KVM_PAGING_MAY_FAIL : 0;
}

/*
 * Before a vCPU leaves nested paging: whether its caches have what it needs to begin there again. A cgroup that has given
 * all it has to a stay in shadow paging would give nothing then.
 */
bool kvm_paging_mmu_fill(struct kvm_vcpu *vcpu)
{
	int r;

	kvm_paging_mmu_may_fail(vcpu, true);
	r = mmu_topup_memory_caches(vcpu, false);
	kvm_paging_mmu_may_fail(vcpu, false);
	return !r;
}

/* The vCPU leaves nested paging: its caches rest, and shadow paging has its own. */
void kvm_paging_mmu_rest(struct kvm_vcpu *vcpu)
{
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;
	int i;

	for (i = 0; i < KVM_PAGING_CACHES; i++) {
		struct kvm_mmu_memory_cache *cache = kvm_paging_cache(vcpu, i);

		v->resting[i] = *cache;
		cache->nobjs = cache->capacity = 0;
		cache->objects = NULL;
	}
	v->rests = true;
}

/* The vCPU is back in nested paging, with what its caches had. One that was born in shadow paging has those of now. */
void kvm_paging_mmu_wake(struct kvm_vcpu *vcpu)
{
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;
	int i;

	if (!v->rests)
		return;
	for (i = 0; i < KVM_PAGING_CACHES; i++) {
		kvm_mmu_free_memory_cache(kvm_paging_cache(vcpu, i));
		*kvm_paging_cache(vcpu, i) = v->resting[i];
	}
	v->rests = v->may_fail = false;
}

/* The MMU of a vCPU in shadow paging is set up, or set up anew as a control register has changed. */
void kvm_paging_mmu_ready(struct kvm_vcpu *vcpu)
{
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;

	v->key_mask = vcpu->arch.mmu->root_role.keyed ? KVM_PAGING_PTE_KEY_MASK : 0;
	if (tdp_enabled)
		kvm_paging_mmu_may_fail(vcpu, true);
	/* A vCPU born under nested paging has the table in cipher, if that is how this host has its memory. */
	if (tdp_enabled && !v->pae_in_clear && vcpu->arch.root_mmu.pae_root) {
		set_memory_decrypted((unsigned long)vcpu->arch.root_mmu.pae_root, 1);
		v->pae_in_clear = true;
	}
	/* It waits for nested paging before it enters the guest, see kvm_paging_await_nested(). */
	if (tdp_enabled && kvm_paging_keys_need_nested(vcpu, kvm_read_cr0(vcpu)))
		kvm_make_request(KVM_REQ_PAGING_MODE, vcpu);
}

/* Before a vCPU's PDP table and caches are freed. */
void kvm_paging_mmu_destroy(struct kvm_vcpu *vcpu)
{
	kvm_paging_mmu_wake(vcpu);
	if (vcpu->arch.paging.pae_in_clear)
		set_memory_encrypted((unsigned long)vcpu->arch.root_mmu.pae_root, 1);
}

/* The MMU anew, in the vCPU's mode: roots go, and no role may look unchanged. */
void kvm_paging_mmu_reset(struct kvm_vcpu *vcpu)
{
	vcpu->arch.root_mmu.root_role.invalid = 1;
	vcpu->arch.guest_mmu.root_role.invalid = 1;
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
	vcpu->arch.root_mmu.cpu_role.ext.valid = 0;
	vcpu->arch.guest_mmu.cpu_role.ext.valid = 0;
	vcpu->arch.nested_mmu.root_role.invalid = 1;
	vcpu->arch.nested_mmu.cpu_role.ext.valid = 0;
#else
	vcpu->arch.ngpa_walk.cpu_role.ext.valid = 0;
	vcpu->arch.gva_walk.cpu_role.ext.valid = 0;
#endif
	/* Those of shadow paging come with kvm_paging_mmu_ready(). */
	vcpu->arch.paging.key_mask = 0;
	kvm_init_mmu(vcpu);
}

#ifdef CONFIG_X86_64
/* Table pages of the TDP MMU below its roots. */
unsigned long kvm_paging_mmu_nested_tables(struct kvm *kvm)
{
	if (!kvm_paging_tdp_mmu(kvm))
		return kvm_paging_shadow_pages(kvm);
	/* See patches/45-count-tables. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0) || LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
	return atomic64_read(&kvm->arch.paging.tdp_tables);
#else
	return atomic64_read(&kvm->arch.tdp_mmu_pages);
#endif
}
#else
unsigned long kvm_paging_mmu_nested_tables(struct kvm *kvm)
{
	return 0;
}
#endif
