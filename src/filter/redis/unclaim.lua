-- Deletes every key that still holds the claim given for it, and returns how many there were.
local deleted = 0
for i, key in ipairs(KEYS) do
  -- pcall: a key that holds no text is nobody's claim.
  if redis.pcall('get', key) == ARGV[i] then
    deleted = deleted + redis.call('del', key)
  end
end
return deleted
