-- SPDX-License-Identifier: Apache-2.0 OR MIT
-- A table of 500,000 rows, an index over it, and a join whose lookups are in random order.
create table t(id integer primary key, a integer, b text);
with recursive c(i) as (select 1 union all select i + 1 from c where i < 500000)
    insert into t select i, (i * 7919) % 500000, printf('%032x', i * 2654435761) from c;
create index k on t(a);
select sum(length(y.b) + y.id) from t x join t y on y.a = (x.id * 48271) % 500000 where x.id <= 400000;
