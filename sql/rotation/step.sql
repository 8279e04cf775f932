-- Which generations a claim of this transaction writes to and looks into. A statement of its own,
-- after the one that assigned the transaction's number.
select oldest_generation, generation, next_generation from onceonly.pipeline where id = $1
