% Some hundred megabytes of numbers and cells; what is printed is always the same.
rand ("twister", 5);
m = rand (900);
printf ("%.6f\n", sum (m \ (m * ones (900, 1))));
x = rand (4e6, 1);
printf ("%.9f\n", mod (sum (sort (x) .* (1:numel (x))'), 1000));
c = cell (1, 2e5);
for i = 1:numel (c) c{i} = sprintf ("%d", mod (i * 7919, 200003)); end
[u, i, j] = unique (c);
printf ("%d %d\n", numel (u), sum (j));
s = sparse (randi (2000, 1e5, 1), randi (2000, 1e5, 1), 1, 2000, 2000);
printf ("%d %.6f\n", nnz (s), sum (sum (s * s')));
f = fft (x(1:2^20));
printf ("%.6f\n", abs (sum (ifft (f)) - sum (x(1:2^20))) < 1e-6);
