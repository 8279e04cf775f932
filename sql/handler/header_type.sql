-- The type's number, which the binary form of an array carries.
select to_regtype('onceonly.header')::oid as header_type
