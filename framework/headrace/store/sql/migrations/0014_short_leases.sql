<<<<<<< HEAD
-- A lease call of a consumer that is up to date takes a quarter of the steps, and one that finds nothing writes nothing:
=======
-- A lease call of a consumer that is up to date takes a short way, and one that finds nothing writes nothing:
>>>>>>> w-lease
-- lease_few. A mark is taken each thousand seqs, unless there are holes. Only functions change.
