// SPDX-License-Identifier: GPL-2.0-only
/*
 * A VM's paging mode and its figures in debugfs: paging_mode, which switches the VM when written, and paging_stats.
 * docs/reference/kernel-interface.md describes both.
 */
#include <linux/debugfs.h>
#include <linux/kvm_host.h>
#include <linux/seq_file.h>

#include "paging_mode.h"

static int mode_show(struct seq_file *m, void *unused)
{
	struct kvm_paging_vm *p = &((struct kvm *)m->private)->arch.paging;
	bool nested, target;

	spin_lock(&p->lock);
	nested = p->nested;
	target = p->target;
	spin_unlock(&p->lock);
	if (nested == target)
		seq_printf(m, "%s\n", kvm_paging_names[nested]);
	else
		seq_printf(m, "%s -> %s\n", kvm_paging_names[nested], kvm_paging_names[target]);
	return 0;
}

static int stats_show(struct seq_file *m, void *unused)
{
	struct kvm *kvm = m->private;
	struct kvm_paging_vm *p = &kvm->arch.paging;
	/* Not under the mutex: who reads must not wait for a switch. */
	const struct { const char *name; u64 value; } values[] = {
		{ "switches_to_shadow", READ_ONCE(p->to_shadow) },
		{ "switches_to_nested", READ_ONCE(p->to_nested) },
		{ "switches_by_guest", READ_ONCE(p->by_guest) },
		{ "refused", READ_ONCE(p->refused) },
		{ "rolled_back", READ_ONCE(p->rolled_back) },
		{ "vcpus", atomic_read(&kvm->online_vcpus) },
		{ "vcpus_in_guest_last", READ_ONCE(p->in_guest_last) },
		{ "quiesce_ns_last", READ_ONCE(p->quiesce.last) },
		{ "quiesce_ns_worst", READ_ONCE(p->quiesce.worst) },
		{ "switch_ns_last", READ_ONCE(p->work.last) },
		{ "switch_ns_worst", READ_ONCE(p->work.worst) },
		{ "resume_ns_last", READ_ONCE(p->resume.last) },
		{ "resume_ns_worst", READ_ONCE(p->resume.worst) },
		{ "drop_ns_last", READ_ONCE(p->drop.last) },
		{ "drop_ns_worst", READ_ONCE(p->drop.worst) },
		{ "tables_kept", kvm_paging_mmu_nested_tables(kvm) },
		{ "tables_dropped", READ_ONCE(p->tables_dropped) },
		{ "shadow_pages", READ_ONCE(kvm->arch.n_used_mmu_pages) },
		{ "shadow_pages_dropped", READ_ONCE(p->shadow_pages_dropped) },
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(values); i++)
		seq_printf(m, "%s %llu\n", values[i].name, values[i].value);
	return 0;
}

static int open_for(struct file *file, struct kvm *kvm, int (*show)(struct seq_file *, void *))
{
	int r;

	/* The VM's directory outlives its last user by a moment. */
	if (!kvm_get_kvm_safe(kvm))
		return -ENOENT;
	r = single_open(file, show, kvm);
	if (r < 0)
		kvm_put_kvm(kvm);
	return r;
}

static int mode_open(struct inode *inode, struct file *file)
{
	return open_for(file, inode->i_private, mode_show);
}

static int stats_open(struct inode *inode, struct file *file)
{
	return open_for(file, inode->i_private, stats_show);
}

static int paging_release(struct inode *inode, struct file *file)
{
	kvm_put_kvm(inode->i_private);
	return single_release(inode, file);
}

static ssize_t mode_write(struct file *file, const char __user *from, size_t n, loff_t *at)
{
	struct kvm *kvm = file_inode(file)->i_private;
	char word[16];
	int r;

	/* The debugfs mode keeps others out unless someone has changed it. */
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (n >= sizeof(word))
		return -EINVAL;
	if (copy_from_user(word, from, n))
		return -EFAULT;
	word[n] = 0;
	r = kvm_paging_mode_of(word);
	if (r < 0)
		return -EINVAL;
	r = kvm_paging_set_mode(kvm, r);
	return r ? r : n;
}

static const struct file_operations mode_fops = {
	.owner = THIS_MODULE,
	.open = mode_open,
	.read = seq_read,
	.write = mode_write,
	.llseek = seq_lseek,
	.release = paging_release,
};

static const struct file_operations stats_fops = {
	.owner = THIS_MODULE,
	.open = stats_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = paging_release,
};

void kvm_paging_create_debugfs(struct kvm *kvm)
{
	debugfs_create_file("paging_mode", 0600, kvm->debugfs_dentry, kvm, &mode_fops);
	debugfs_create_file("paging_stats", 0400, kvm->debugfs_dentry, kvm, &stats_fops);
}
