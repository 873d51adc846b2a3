-- A table of tables and strings, made anew six times.
local blocks = {}
for round = 1, 6 do
  for i = 1, 600000 do
    blocks[i] = { i, round, tostring(i) }
  end
  local sum = 0
  for i = 1, 600000 do
    sum = sum + blocks[i][1] * blocks[i][2] + #blocks[i][3]
  end
  print(round, sum)
end
